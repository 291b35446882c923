//go:build go1.25

package mutex_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// The slice is that of the caller, who may have one lock in it twice.
func TestUnlockAllLeavesTheSliceAlone(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		c := w.client()
		var locks []*mutex.Lock
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			l := w.lock(c, name)
			locks = append(locks, l, l)
		}
		given := slices.Clone(locks)
		require.NoError(t, c.UnlockAll(t.Context(), given...))
		require.Equal(t, locks, given)
		require.Empty(t, w.fields())
	})
}

// Two callers with the same locks in another order do not wait for each other, however they come to their turns.
func TestUnlockAllInAnyOrder(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour))
		locks, _, err := c.TryLockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		for range 2 { // either may be the first in their order
			slices.Reverse(locks)
			link.Set(memetcd.Unreachable())
			var all errgroup.Group
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			all.Go(func() error { return locks[0].Unlock(ctx) }) // fails, and both wait for that
			<-time.After(time.Millisecond)
			for _, order := range [][]*mutex.Lock{{locks[0], locks[1]}, {locks[1], locks[0]}} {
				all.Go(func() error { return c.UnlockAll(t.Context(), order...) })
				<-time.After(time.Millisecond)
			}
			<-time.After(2 * time.Second)
			link.Set(memetcd.Faults{})
			require.ErrorIs(t, all.Wait(), context.DeadlineExceeded)
			require.Empty(t, uuidIn(t, link, "a")+uuidIn(t, link, "b"))
			locks, _, err = c.TryLockAll(t.Context(), []string{"a", "b"})
			require.NoError(t, err)
		}
		require.NoError(t, c.UnlockAll(t.Context(), locks...))
	})
}

// Unlock that finds the lock gone waits half a second for the record of that, and reads nothing after its return.
func TestUnlockWaitsLittleForTheRecord(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		_, err = link.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
		require.NoError(t, err)
		reads := count[*etcdserverpb.RangeRequest](link)
		began := time.Now()
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
		require.Equal(t, 500*time.Millisecond, time.Since(began))
		before := reads.Load()
		<-time.After(time.Minute)
		require.Equal(t, before, reads.Load())
	})
}

// When Unlock returns, nothing that the lock does goes on, and its event is the last.
func TestUnlockWaitsForTheAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		var s seen
		c, link := connect(mutex.Observe(func(e mutex.Event) {
			if e.Kind == mutex.EventAsked {
				<-time.After(time.Minute)
			}
			s.add(e)
		}))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(time.Second)
		question(t, link, l)
		<-time.After(time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		kinds, _ := s.take("")
		require.Equal(t, []mutex.EventKind{mutex.EventTaken, mutex.EventAsked, mutex.EventReleased}, kinds)
	})
}

// A context that has ended permits one attempt.
func TestUnlockAfterTheEnd(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		_, admin := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		link.Set(memetcd.Unreachable())
		began := time.Now()
		require.ErrorIs(t, l.Unlock(ctx), context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(began))
		link.Set(memetcd.Faults{})
		require.Equal(t, l.UUID(), uuidIn(t, admin, "a"))
		require.NoError(t, l.Unlock(ctx))
		require.Empty(t, uuidIn(t, admin, "a"))
	})
}

// A lock is taken with one transaction, and released with another. If the answer to the first is lost, a second one finds the
// lock, and no attempt is left to be executed late.
func TestTransactionsOfALock(t *testing.T) {
	for name, tc := range map[string]struct {
		first memetcd.Faults
		want  int64
	}{"answered": {memetcd.Faults{}, 2}, "answer lost": {memetcd.Faults{HoldAnswers: true}, 3}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				c, link := connect(mutex.Patience(time.Hour))
				var sent atomic.Int64
				link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					if _, ok := req.(*etcdserverpb.TxnRequest); ok && sent.Add(1) == 1 {
						return tc.first
					}
					return memetcd.Faults{}
				})
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				require.NoError(t, l.Unlock(t.Context()))
				<-time.After(2 * time.Hour)
				require.Equal(t, tc.want, sent.Load())
			})
		})
	}
}

// Unlock right after the machine was suspended, before any timer fires, reports the loss.
func TestUnlockComparesTheClocks(t *testing.T) {
	t.Parallel()
	onEtcd(t, func(t *testing.T, w world) {
		l := w.lock(w.client(mutex.Patience(time.Minute)), "a")
		l.Pass(time.Hour, 0)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrDeadline)
	})
}

// Unlock of a lost lock ends the search for the record of its removal.
func TestUnlockEndsTheSearch(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(time.Second)
		reads := count[*etcdserverpb.RangeRequest](link)
		_, err = link.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrForced)
		<-time.After(100 * time.Millisecond)
		began, before := time.Now(), reads.Load()
		require.NotZero(t, before)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
		require.Zero(t, time.Since(began))
		<-time.After(time.Minute)
		require.Equal(t, before, reads.Load())
	})
}
