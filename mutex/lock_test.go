//go:build go1.25

package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
)

func seconds(t *testing.T, v string) time.Time {
	t.Helper()
	f, err := strconv.ParseFloat(v, 64)
	require.NoError(t, err)
	return time.UnixMicro(int64(f * 1e6))
}

func TestLockWritesWhatTheProtocolNames(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		w.txn(clientv3.OpPut(w.prefix+"a/b/uuid", "nested"))
		c := w.client(mutex.Owner("billing"))
		before := time.Now()
		l := w.lock(c, "a", mutex.Expect(10*time.Second), mutex.Patience(30*time.Second), mutex.Purpose("invoices"), mutex.Metadata("ticket", "OPS-1"))
		f := w.fields()
		require.Equal(t, l.UUID(), f["a/uuid"])
		require.Regexp(t, "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", l.UUID(), "a random one of RFC 9562")
		require.Equal(t, "billing", f["a/owner"])
		require.Equal(t, "invoices", f["a/purpose"])
		require.Equal(t, "OPS-1", f["a/ticket"])
		require.NotEmpty(t, f["a/hostname"])
		require.NotEmpty(t, f["a/pid"])
		require.Contains(t, f["a/backtrace"], "TestLockWritesWhatTheProtocolNames")
		require.NotContains(t, f["a/backtrace"], "(*Client)")
		at := seconds(t, f["a/locked_at"])
		require.WithinRange(t, at, before.Add(-time.Millisecond), time.Now())
		require.WithinDuration(t, at.Add(10*time.Second), seconds(t, f["a/alert_at"]), time.Millisecond)
		require.WithinDuration(t, at.Add(30*time.Second), seconds(t, f["a/auto_unlock_at"]), time.Millisecond)
		require.WithinDuration(t, at.Add(27*time.Second), l.Deadline(), time.Millisecond)
		require.NotContains(t, f, "a/alive_at")

		resp, err := w.etcd.Get(t.Context(), w.prefix+"a/uuid")
		require.NoError(t, err)
		require.Equal(t, resp.Kvs[0].CreateRevision, l.Token())
		require.NoError(t, l.Held())

		require.NoError(t, l.Alive(t.Context(), mutex.Status("half"), mutex.Patience(40*time.Second)))
		f = w.fields()
		alive := seconds(t, f["a/alive_at"])
		require.Equal(t, "half", f["a/status"])
		require.True(t, alive.After(at))
		require.WithinDuration(t, alive.Add(10*time.Second), seconds(t, f["a/alert_at"]), time.Millisecond)
		require.WithinDuration(t, alive.Add(40*time.Second), seconds(t, f["a/auto_unlock_at"]), time.Millisecond)

		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, map[string]string{"a/b/uuid": "nested"}, w.fields())
		require.ErrorIs(t, l.Held(), mutex.ErrUnlocked)
		require.ErrorIs(t, l.Alive(t.Context()), mutex.ErrUnlocked)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

func TestHeldBySomebodyElse(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		l := w.lock(w.client(mutex.Owner("billing")), "a", mutex.Purpose("invoices"), mutex.Patience(time.Minute))
		require.NoError(t, l.Alive(t.Context(), mutex.Status("512 of 10,000")))
		c := w.client()
		_, err := c.TryLock(t.Context(), "a")
		var held *mutex.HeldError
		require.ErrorAs(t, err, &held)
		require.ErrorIs(t, err, mutex.ErrHeld)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		h := held.Holder
		require.Equal(t, []any{l.UUID(), l.Token(), "billing", "invoices", "512 of 10,000"}, []any{h.UUID, h.Token, h.Owner, h.Purpose, h.Status})
		require.WithinDuration(t, h.AliveAt.Add(time.Minute), h.AutoUnlockAt, time.Millisecond)
		require.Regexp(t, `^lock "a" is held by "billing" on ".+" pid "\d+" since 20.+ until 20.+ for "invoices" \("512 of 10,000"\)$`, err.Error())

		_, err = c.Lock(t.Context(), "a", mutex.Wait(10*time.Second)) // it knows the holder from etcd's answer, which may take long
		require.ErrorIs(t, err, mutex.ErrHeld)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("shutdown"))
		_, err = c.Lock(ctx, "a")
		require.ErrorContains(t, err, "shutdown")
	})
}

// What an earlier holder has left is not said of this one.
func TestHolderWithoutWhatIsLeft(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		w.txn(clientv3.OpPut(w.prefix+"a/purpose", "old"), clientv3.OpPut(w.prefix+"a/status", "old"))
		w.lock(w.client(mutex.Owner("billing")), "a")
		_, err := w.client().TryLock(t.Context(), "a")
		var held *mutex.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, []string{"billing", "", ""}, []string{held.Holder.Owner, held.Holder.Purpose, held.Holder.Status})
	})
}

func TestLockWaitsForTheRelease(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		first := w.lock(w.client(), "a")
		got := make(chan *mutex.Lock, 1)
		var waiting errgroup.Group
		c := w.client()
		waiting.Go(func() error {
			l, err := c.Lock(t.Context(), "a")
			got <- l
			return err
		})
		select {
		case <-got:
			require.FailNow(t, "two holders")
		case <-time.After(100 * time.Millisecond):
		}
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, waiting.Wait())
		second := <-got
		require.Greater(t, second.Token(), first.Token())
		require.NoError(t, second.Unlock(t.Context()))
	})
}

// TestLoss loses a lock in each way, and takes the cause from its context.
func TestLoss(t *testing.T) {
	for name, tc := range map[string]struct {
		lose   func(w world, l *mutex.Lock)
		reason error
	}{
		"removed":     {func(w world, _ *mutex.Lock) { w.txn(clientv3.OpDelete(w.prefix + "a/uuid")) }, mutex.ErrForced},
		"taken":       {func(w world, _ *mutex.Lock) { w.txn(clientv3.OpPut(w.prefix+"a/uuid", "other")) }, mutex.ErrTaken},
		"not renewed": {func(world, *mutex.Lock) {}, mutex.ErrDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				patience := time.Minute
				if errors.Is(tc.reason, mutex.ErrDeadline) {
					patience = 12 * time.Second // for it to be held at first, also on a busy machine
				}
				l := w.lock(w.client(), "a", mutex.Patience(patience))
				ctx := l.Context(t.Context())
				require.NoError(t, ctx.Err())
				tc.lose(w, l)
				err := done(t, ctx)
				var lost *mutex.LostError
				require.ErrorAs(t, err, &lost)
				require.ErrorIs(t, err, mutex.ErrLost)
				require.ErrorIs(t, err, tc.reason)
				require.ErrorIs(t, l.Held(), tc.reason)
				require.ErrorIs(t, l.Alive(t.Context()), tc.reason)
				if errors.Is(tc.reason, mutex.ErrTaken) {
					require.Equal(t, "other", lost.Holder.UUID)
				}
				require.ErrorIs(t, l.Unlock(t.Context()), tc.reason)
				require.NoError(t, l.Unlock(t.Context()))
				require.Equal(t, errors.Is(tc.reason, mutex.ErrTaken), w.fields()["a/uuid"] == "other")
			})
		})
	}
}

func TestWithLock(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		c := w.client()
		require.NoError(t, c.WithLock(t.Context(), "a", func(ctx context.Context) error {
			l, ok := mutex.FromContext(ctx)
			require.True(t, ok)
			return l.Alive(ctx)
		}))
		require.Empty(t, w.fields())
		broken := errors.New("broken")
		require.ErrorIs(t, c.WithLock(t.Context(), "a", func(context.Context) error { return broken }), broken)
		require.Panics(t, func() {
			_ = c.WithLock(t.Context(), "a", func(context.Context) error { panic("broken") })
		})
		require.Empty(t, w.fields())

		err := c.WithLock(t.Context(), "a", func(ctx context.Context) error {
			w.txn(clientv3.OpDelete(w.prefix + "a/uuid"))
			return done(t, ctx)
		})
		require.ErrorIs(t, err, mutex.ErrForced)
		ctx, cancel := context.WithCancel(t.Context())
		require.ErrorIs(t, c.WithLock(ctx, "b", func(ctx context.Context) error {
			cancel()
			return done(t, ctx)
		}), context.Canceled)
		require.NotContains(t, w.fields(), "b/uuid")
	})
}

func TestTryLockAll(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		other := w.lock(w.client(mutex.Owner("other")), "n/7")
		var names []string
		for i := range 300 {
			names = append(names, fmt.Sprintf("n/%d", i))
		}
		c := w.client()
		taken, held, err := c.TryLockAll(t.Context(), names)
		require.NoError(t, err)
		require.Len(t, taken, 299)
		require.Len(t, held, 1)
		require.Equal(t, []string{"n/7", "other", other.UUID()}, []string{held[0].Name, held[0].Holder.Owner, held[0].Holder.UUID})
		revisions := map[int64]bool{}
		for _, l := range taken {
			revisions[l.Token()] = true
		}
		require.Len(t, revisions, 3, "transactions")
		require.Equal(t, "n/6", taken[6].Name())
		require.Equal(t, "n/8", taken[7].Name())
		require.NoError(t, taken[0].Alive(t.Context()))
		require.NoError(t, taken[1].Unlock(t.Context()))
		require.NoError(t, c.UnlockAll(t.Context(), taken...))
		require.NoError(t, other.Unlock(t.Context()))
		require.Empty(t, w.fields())
	})
}

// TestAContextComparesTheClocks looks at the context of a lock right after the machine was suspended, before any timer fires.
func TestAContextComparesTheClocks(t *testing.T) {
	t.Parallel()
	onEtcd(t, func(t *testing.T, w world) {
		c := w.client(mutex.Patience(time.Minute))
		for name, ended := range map[string]func(context.Context) bool{
			"err": func(ctx context.Context) bool { return ctx.Err() != nil },
			"done": func(ctx context.Context) bool {
				select {
				case <-ctx.Done():
					return true
				default:
					return false
				}
			},
		} {
			l := w.lock(c, name)
			ctx := l.Context(t.Context())
			require.False(t, ended(ctx), name)
			l.Pass(time.Hour, 0)
			require.True(t, ended(ctx), name)
			require.ErrorIs(t, context.Cause(ctx), mutex.ErrDeadline, name)
		}
	})
}
