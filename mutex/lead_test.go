//go:build go1.25

package mutex_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestForever(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		_, err := mutex.New(clientv3.NewCtxClient(t.Context()), mutex.KeepAlive(9000*time.Hour), mutex.Wait(9000*time.Hour))
		require.NoError(t, err)
		c, link := connect(mutex.KeepAlive(mutex.Forever), mutex.Wait(mutex.Forever), mutex.Patience(time.Minute))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(2 * time.Hour)
		require.NoError(t, l.Held())
		resp, err := link.Get(t.Context(), "/mutexes/a/auto_unlock_at")
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(time.Minute), seconds(t, string(resp.Kvs[0].Value)), 20*time.Second)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// election is three processes that elect a leader, whose term is what the test sends.
type election struct {
	terms   chan func(context.Context) error
	leading atomic.Int32
	ended   chan error
	stop    context.CancelCauseFunc
}

func elect(t *testing.T, connect connect) *election {
	ctx, stop := context.WithCancelCause(t.Context())
	e := &election{terms: make(chan func(context.Context) error), ended: make(chan error, 3), stop: stop}
	for range 3 {
		c, _ := connect(mutex.Patience(15 * time.Second))
		go func() {
			e.ended <- c.Lead(ctx, "leader", func(ctx context.Context) error {
				if e.leading.Add(1) != 1 {
					t.Error("two lead")
				}
				defer e.leading.Add(-1)
				select {
				case term := <-e.terms:
					return term(ctx)
				case <-ctx.Done():
					return nil
				}
			})
		}()
	}
	return e
}

// lead sends a term, and returns after how long one of them leads.
func (e *election) lead(t *testing.T, term func(context.Context) error) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case e.terms <- term:
		return time.Since(began)
	case <-time.After(time.Hour):
		require.FailNow(t, "nobody leads")
		return 0
	}
}

func TestLead(t *testing.T) {
	untilLost := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("the term was too short") // its loss is not an error of Lead
	}
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		_, admin := connect()
		e := elect(t, connect)
		for range 10 {
			require.Less(t, e.lead(t, func(context.Context) error { return nil }), 3*time.Second)
		}
		e.lead(t, untilLost)
		// Without quorum.
		cluster.Set(memetcd.Faults{NoLeader: true})
		<-time.After(20 * time.Second)
		require.Zero(t, e.leading.Load())
		cluster.Set(memetcd.Faults{})
		require.Less(t, e.lead(t, untilLost), 5*time.Second)
		// Without space.
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		<-time.After(time.Minute)
		require.Zero(t, e.leading.Load())
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)
		require.Less(t, e.lead(t, untilLost), 5*time.Second)
		why := errors.New("shutdown")
		e.stop(why)
		for range 3 {
			if err := <-e.ended; !errors.Is(err, why) {
				require.EqualError(t, err, "the term was too short", "what the leader returned at the end")
			}
		}
		synctest.Wait()
		require.Empty(t, uuidIn(t, admin, "leader"))
	})
}

// TestLeadAfterAForcedRemoval leads again at once, whatever its function has returned.
func TestLeadAfterAForcedRemoval(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		terms, began := 0, time.Now()
		require.ErrorIs(t, c.Lead(t.Context(), "leader", func(ctx context.Context) error {
			if terms++; terms == 5 {
				return io.EOF
			}
			_, err := link.Delete(t.Context(), "/mutexes/leader/", clientv3.WithPrefix())
			require.NoError(t, err)
			<-ctx.Done()
			return io.ErrUnexpectedEOF
		}), io.EOF)
		require.Equal(t, 5, terms)
		require.Less(t, time.Since(began), 4*2*time.Second+time.Second, "two seconds to read the record of each removal")
	})
}

// TestLeadReturnsWhatItsFunctionReturns does not lead again after an error.
func TestLeadReturnsWhatItsFunctionReturns(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		require.ErrorIs(t, c.Lead(t.Context(), "leader", func(context.Context) error { return io.EOF }), io.EOF)
		require.Empty(t, uuidIn(t, link, "leader"))
		for _, returned := range []error{io.EOF, nil} {
			why := errors.New("shutdown")
			ctx, stop := context.WithCancelCause(t.Context())
			err := c.Lead(ctx, "leader", func(context.Context) error { stop(why); return returned })
			require.ErrorIs(t, err, cmp.Or(returned, why))
		}
		require.ErrorContains(t, c.Lead(t.Context(), "a//b", func(context.Context) error { return nil }), "empty segment")
		l, err := c.Lock(t.Context(), "leader")
		require.NoError(t, err)
		require.ErrorIs(t, c.Lead(t.Context(), "leader", func(context.Context) error { return nil }, mutex.Wait(time.Second)), mutex.ErrHeld)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestLeadKeepsTheLock has no option that says so.
func TestLeadKeepsTheLock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, _ := connect()
		require.ErrorIs(t, c.Lead(t.Context(), "leader", func(ctx context.Context) error {
			<-time.After(24 * time.Hour)
			require.NoError(t, ctx.Err())
			return io.EOF
		}), io.EOF)
	})
}

// A lock that an attempt took so late that its deadline has passed is lost when it is known: nobody works under it.
func TestNobodyLeadsWithALockThatWasTakenTooLate(t *testing.T) {
	const outage = 20 * time.Second
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		began := time.Now()
		var lost atomic.Pointer[error]
		c, link := connect(mutex.Patience(10*time.Second), mutex.Observe(func(e mutex.Event) {
			if e.Kind == mutex.EventLost {
				lost.CompareAndSwap(nil, &e.Err)
			}
		}))
		sent := false
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			switch txn, ok := req.(*etcdserverpb.TxnRequest); {
			case time.Since(began) > outage:
				return memetcd.Faults{}
			case ok && len(txn.Compare) > 0 && !sent:
				sent = true
				return memetcd.Faults{Request: outage}
			}
			return memetcd.Unreachable()
		})
		require.ErrorIs(t, c.Lead(t.Context(), "a", func(ctx context.Context) error {
			require.NoError(t, ctx.Err())
			require.Less(t, time.Since(began), outage+15*time.Second)
			return io.EOF
		}), io.EOF)
		synctest.Wait()
		require.NotNil(t, lost.Load(), "the first lock")
		require.EqualError(t, *lost.Load(), `lock "a" is lost: not renewed in time`)
		require.Empty(t, uuidIn(t, link, "a"))
	})
}
