//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

type connect = func(...mutex.Option) (*mutex.Client, *memetcd.Link)

// TestKeepAlive keeps 300 locks for their maximum hold: three transactions for each third of
// the patience, no alert put off, and nothing after the hold.
func TestKeepAlive(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(10*time.Minute), mutex.Patience(time.Minute), mutex.Expect(5*time.Minute), mutex.Backtrace(false))
		txns := count[*etcdserverpb.TxnRequest](link)
		var names []string
		for i := range 300 {
			names = append(names, fmt.Sprint(i))
		}
		began := time.Now()
		locks, _, err := c.TryLockAll(t.Context(), names)
		require.NoError(t, err)
		require.Len(t, locks, 300)
		require.EqualValues(t, 3, txns.Load())
		alert := func() string {
			resp, err := link.Get(t.Context(), "/mutexes/7/alert_at")
			require.NoError(t, err)
			return string(resp.Kvs[0].Value)
		}
		first := alert()
		time.Sleep(9 * time.Minute)
		synctest.Wait() // at this instant the locks are renewed
		require.InDelta(t, 3+3*27, txns.Load(), 6)
		require.Equal(t, first, alert())
		for _, l := range locks {
			require.NoError(t, l.Held())
		}
		err = done(t, locks[7].Context(t.Context()))
		require.ErrorIs(t, err, mutex.ErrDeadline)
		require.ErrorContains(t, err, "maximum hold")
		require.InDelta(t, 10*time.Minute, time.Since(began), float64(10*time.Second))
		count, err := link.Get(t.Context(), "/mutexes/7/auto_unlock_at")
		require.NoError(t, err)
		require.InDelta(t, began.Add(10*time.Minute).Unix(), seconds(t, string(count.Kvs[0].Value)).Unix(), 1)
		require.ErrorIs(t, c.UnlockAll(t.Context(), locks...), mutex.ErrDeadline)
		synctest.Wait()
		left, err := link.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Empty(t, left.Kvs)
	})
}

// TestKeepAliveThroughOutage loses etcd for a while, twice: once for less than the patience,
// and once for good.
func TestKeepAliveThroughOutage(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		link.Set(memetcd.Unreachable())
		time.Sleep(25 * time.Second)
		link.Set(memetcd.Faults{})
		time.Sleep(10 * time.Minute)
		require.NoError(t, l.Held())

		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		other, err := c.Lock(t.Context(), "b")
		require.ErrorIs(t, err, mutex.ErrNoSpace)
		require.Nil(t, other)
		began := time.Now()
		err = done(t, l.Context(t.Context()))
		require.ErrorIs(t, err, mutex.ErrNoSpace)
		require.Less(t, time.Since(began), 55*time.Second)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrNoSpace)
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)

		l, err = c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Unreachable())
		err = done(t, l.Context(t.Context()))
		require.ErrorIs(t, err, mutex.ErrUnreachable)
		require.ErrorIs(t, err, mutex.ErrLost)
		require.WithinDuration(t, l.Deadline(), time.Now(), time.Millisecond)
		link.Set(memetcd.Faults{})
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrUnreachable)
	})
}

// TestKeeperWaitsForNobody takes a lock with a short patience while the renewal of another, with
// a long one, has no answer.
func TestKeeperWaitsForNobody(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Backtrace(false))
		long, err := c.Lock(t.Context(), "long", mutex.Patience(time.Minute))
		require.NoError(t, err)
		time.Sleep(19 * time.Second)
		disturb(link, 1, memetcd.Faults{HoldAnswers: true})
		time.Sleep(1100 * time.Millisecond)
		short, err := c.Lock(t.Context(), "short", mutex.Patience(3*time.Second))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		err = short.Held()
		require.NoError(t, c.UnlockAll(t.Context(), long, short))
		require.NoError(t, err)
	})
}

// TestRefusedLockHarmsNoOther takes the right to one of two locks away, which are renewed together.
func TestRefusedLockHarmsNoOther(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour))
		locks, _, err := c.TryLockAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		link.Allow("/mutexes/a/", "/mutexes/a0")
		require.ErrorIs(t, done(t, locks[1].Context(t.Context())), mutex.ErrDeadline)
		time.Sleep(5 * time.Minute)
		require.NoError(t, locks[0].Held())
		require.NoError(t, locks[0].Unlock(t.Context()))
		taken, _, err := c.TryLockAll(t.Context(), []string{"a", "c"})
		require.ErrorContains(t, err, "permission denied")
		require.Len(t, taken, 1)
		require.NoError(t, taken[0].Unlock(t.Context()))
	})
}

// TestShorterPatienceIsKept shortens the patience between two renewals, with and without an answer: the
// next renewal is in time for it.
func TestShorterPatienceIsKept(t *testing.T) {
	for name, f := range map[string]memetcd.Faults{"answered": {}, "answer lost": {HoldAnswers: true}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(5*time.Minute), mutex.Backtrace(false))
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(time.Second) // the next renewal is planned
				disturb(link, 1, f)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err = l.Alive(ctx, mutex.Patience(10*time.Second))
				require.Equal(t, f != memetcd.Faults{}, err != nil, err)
				require.Less(t, time.Until(l.Deadline()), 10*time.Second)
				time.Sleep(time.Minute)
				require.NoError(t, l.Held())
				require.NoError(t, l.Unlock(t.Context()))
			})
		})
	}
}

// TestRenewedAtLeastEvery100Seconds has a patience of hours: the daemon waits for a renewal after an outage
// for five minutes only.
func TestRenewedAtLeastEvery100Seconds(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(24*time.Hour), mutex.Patience(3*time.Hour), mutex.Backtrace(false))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		renewals := count[*etcdserverpb.TxnRequest](link)
		time.Sleep(1000*time.Second + time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 10, renewals.Load())
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestRenewalsGoTogetherOnlyIfDueSoon keeps a lock that is renewed ten times as often as another one.
func TestRenewalsGoTogetherOnlyIfDueSoon(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(mutex.Forever), mutex.Backtrace(false))
		for name, patience := range map[string]time.Duration{"often": 30 * time.Second, "seldom": 5 * time.Minute} {
			_, err := c.Lock(t.Context(), name, mutex.Patience(patience))
			require.NoError(t, err)
		}
		time.Sleep(10*time.Minute + time.Second)
		resp, err := link.Get(t.Context(), "/mutexes/seldom/auto_unlock_at")
		require.NoError(t, err)
		require.InDelta(t, 1+7, resp.Kvs[0].Version, 1, "renewed every 75 to 100 s")
	})
}

// TestFailedRenewalIsSoonRepeated: a quarter of the time between two renewals later at the latest, one that etcd has not
// answered counted from its timeout, which is that of the lock.
func TestFailedRenewalIsSoonRepeated(t *testing.T) {
	for name, f := range map[string]memetcd.Faults{"refused": {}, "answer lost": {HoldAnswers: true}} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
				c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(15*time.Second), mutex.Backtrace(false))
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				time.Sleep(4 * time.Second)
				cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, f == memetcd.Faults{})
				var sent []time.Time
				link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					if _, ok := req.(*etcdserverpb.TxnRequest); !ok {
						return memetcd.Faults{}
					}
					sent = append(sent, time.Now())
					return f
				})
				time.Sleep(8 * time.Second)
				link.OnRequest(nil)
				cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)
				require.NoError(t, l.Unlock(t.Context()))
				pause := 1200 * time.Millisecond
				if f.HoldAnswers {
					pause += 3 * time.Second
				}
				require.GreaterOrEqual(t, len(sent), 2)
				require.Less(t, sent[1].Sub(sent[0]), pause)
			})
		})
	}
}

// TestAHoldThatEndsAfterAFailedRenewal fails the renewals of the client, and not that of its user: the hold has ended, and
// not for what failed before.
func TestAHoldThatEndsAfterAFailedRenewal(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(40*time.Second), mutex.Patience(30*time.Second), mutex.Backtrace(false))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			txn, ok := req.(*etcdserverpb.TxnRequest)
			return memetcd.Faults{Refuse: ok && len(txn.Success) == 2} // without alert_at
		})
		time.Sleep(25 * time.Second)
		require.NoError(t, l.Alive(t.Context()))
		err = done(t, l.Context(t.Context()))
		require.ErrorIs(t, err, mutex.ErrDeadline)
		require.ErrorContains(t, err, "maximum hold")
		link.OnRequest(nil)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrDeadline)
	})
}

// TestStackOfARenewedLock: renewals by the client put neither the alert nor the stack off.
func TestStackOfARenewedLock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute), mutex.Expect(5*time.Minute))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		stack := func() bool {
			resp, err := link.Get(t.Context(), "/mutexes/a/stack")
			require.NoError(t, err)
			return len(resp.Kvs) > 0
		}
		time.Sleep(5*time.Minute - time.Second)
		require.False(t, stack())
		time.Sleep(2 * time.Second)
		require.True(t, stack())
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestRenewalsWriteNoStatus: one that another wrote, as an answer of the holder, stays.
func TestRenewalsWriteNoStatus(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute), mutex.Backtrace(false))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Alive(t.Context(), mutex.Status("first")))
		_, err = link.Put(t.Context(), "/mutexes/a/status", "second")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		resp, err := link.Get(t.Context(), "/mutexes/a/status")
		require.NoError(t, err)
		require.Equal(t, "second", string(resp.Kvs[0].Value))
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestNoRenewalOutlivesTheLastLock releases it while a renewal has no answer.
func TestNoRenewalOutlivesTheLastLock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute), mutex.Backtrace(false))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(19 * time.Second)
		disturb(link, 1, memetcd.Faults{HoldAnswers: true})
		time.Sleep(2 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		synctest.Wait()
		require.Zero(t, goroutines())
	})
}
