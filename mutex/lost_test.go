//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
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

// simulated runs a test on an etcd in memory in a bubble, in which time is virtual. It is not
// parallel: it computes all the time, and others measure.
func simulated(t *testing.T, test func(t *testing.T, c *memetcd.Cluster, connect connect)) {
	if realEtcd != "" {
		t.Skip("is about faults of the etcd in memory")
	}
	inBubble(t, func(t *testing.T) {
		c := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		test(t, c, func(opts ...mutex.Option) (*mutex.Client, *memetcd.Link) {
			link, err := c.Connect()
			require.NoError(t, err)
			client, err := mutex.New(link.Client, opts...)
			require.NoError(t, err)
			return client, link
		})
	})
}

// disturb gives the next n transactions of a client the faults.
func disturb(l *memetcd.Link, n int, f memetcd.Faults) {
	l.OnRequest(func(req memetcd.Message) memetcd.Faults {
		if _, ok := req.(*etcdserverpb.TxnRequest); !ok || n == 0 {
			return memetcd.Faults{}
		}
		n--
		return f
	})
}

// disturbFirst gives the next transaction of a client that is such the faults. The channel is closed when it is sent.
func disturbFirst(link *memetcd.Link, such func(*etcdserverpb.TxnRequest) bool, f memetcd.Faults) <-chan struct{} {
	sent, once := make(chan struct{}), false
	link.OnRequest(func(req memetcd.Message) memetcd.Faults {
		if txn, ok := req.(*etcdserverpb.TxnRequest); !ok || once || !such(txn) {
			return memetcd.Faults{}
		}
		once = true
		close(sent)
		return f
	})
	return sent
}

// count counts the requests of a client that are of a type, from now on.
func count[T memetcd.Message](link *memetcd.Link) *atomic.Int64 {
	n := new(atomic.Int64)
	link.OnRequest(func(req memetcd.Message) memetcd.Faults {
		if _, ok := req.(T); ok {
			n.Add(1)
		}
		return memetcd.Faults{}
	})
	return n
}

// TestLostAnswers loses the answer of each operation's first transactions, or delays those
// until the next attempt has been answered.
func TestLostAnswers(t *testing.T) {
	for name, f := range map[string]memetcd.Faults{
		"answer lost":     {HoldAnswers: true},
		"request lost":    {HoldRequests: true},
		"request delayed": {Request: 8 * time.Second},
		"answer slow":     {Answer: 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				c, link := connect()
				admin, _ := connect()
				for range 2 { // the second time, late requests of the first have arrived
					disturb(link, 1, f)
					l, err := c.TryLock(t.Context(), "a")
					require.NoError(t, err)
					_, err = admin.TryLock(t.Context(), "a")
					var held *mutex.HeldError
					require.ErrorAs(t, err, &held)
					require.Equal(t, l.UUID(), held.Holder.UUID)
					require.Equal(t, l.Token(), held.Holder.Token)
					require.WithinDuration(t, held.Holder.AutoUnlockAt.Add(-5*time.Second), l.Deadline(), time.Millisecond)

					for i := range 2 {
						disturb(link, i+1, f)
						require.NoError(t, l.Alive(t.Context()))
						require.NoError(t, l.Held())
						time.Sleep(20 * time.Second)
						_, err = admin.TryLock(t.Context(), "a")
						require.ErrorAs(t, err, &held)
						require.False(t, held.Holder.AutoUnlockAt.Add(-5*time.Second).Before(l.Deadline()), "etcd has an earlier deadline than the holder")
					}
					disturb(link, 2, f)
					require.NoError(t, l.Unlock(t.Context()))
					free, err := admin.TryLock(t.Context(), "a")
					require.NoError(t, err)
					require.NoError(t, free.Unlock(t.Context()))
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// TestAbandonedLock gives up while the answer is missing: the lock is released all the same.
func TestAbandonedLock(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		disturb(link, 1, memetcd.Faults{HoldAnswers: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Lock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, mutex.ErrHeld)
		synctest.Wait()
		other, _ := connect()
		l, err := other.TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestShorterPatienceWithoutAnswer shortens the patience, and loses the answer and the connection:
// etcd has the earlier deadline, so the holder counts with it.
func TestShorterPatienceWithoutAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Expect(time.Second), mutex.Patience(2*time.Minute), mutex.Backtrace(false))
		admin, _ := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Faults{HoldAnswers: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Alive(ctx, mutex.Patience(2*time.Second)), context.DeadlineExceeded)
		_, err = admin.TryLock(t.Context(), "a")
		var held *mutex.HeldError
		require.ErrorAs(t, err, &held)
		require.False(t, held.Holder.AutoUnlockAt.Before(l.Deadline()), "etcd has an earlier deadline than the holder")
		require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrLost)
		require.True(t, time.Now().Before(held.Holder.AutoUnlockAt), "stopped too late")
		link.Set(memetcd.Faults{})
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrLost)
	})
}

// TestShortestPatienceWithoutAnswer has the deadline within the second in which the clocks are compared next.
func TestShortestPatienceWithoutAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Expect(time.Second), mutex.Patience(2*time.Minute), mutex.Backtrace(false))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(1101 * time.Millisecond)
		link.Set(memetcd.Faults{HoldAnswers: true})
		began, renewed := time.Now(), make(chan error)
		go func() { renewed <- l.Alive(t.Context(), mutex.Patience(time.Second)) }()
		require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrLost)
		require.Equal(t, 900*time.Millisecond, time.Since(began))
		require.ErrorIs(t, <-renewed, mutex.ErrLost)
		link.Set(memetcd.Faults{})
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrLost)
	})
}

// TestUnlockAgainAfterLostAnswer releases a lock, whose answer is lost, and does so again: it was
// not lost.
func TestUnlockAgainAfterLostAnswer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		disturb(link, 1, memetcd.Faults{HoldAnswers: true})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, l.Unlock(ctx), context.DeadlineExceeded)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestUnlockWaitsForNoOther ends with its context although another Unlock of the lock does not.
func TestUnlockWaitsForNoOther(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Unreachable())
		other := make(chan error)
		go func() { other <- l.Unlock(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err = l.Unlock(ctx)
		took := time.Since(began)
		link.Set(memetcd.Faults{})
		require.NoError(t, <-other)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, took)
		require.NoError(t, l.Unlock(ctx), "it is released")
	})
}

// TestLossIsReportedAtOnce cuts a holder off until its lock is lost: Unlock and WithLock say so at once,
// and what etcd has of the lock goes as soon as etcd answers.
func TestLossIsReportedAtOnce(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(20*time.Minute), mutex.Backtrace(false))
		admin, _ := connect()
		a, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		b, err := c.Lock(t.Context(), "b", mutex.Patience(time.Hour))
		require.NoError(t, err)
		began := time.Now()
		ended := make(chan error)
		go func() {
			ended <- c.WithLock(t.Context(), "c", func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		link.Set(memetcd.Unreachable())
		require.ErrorIs(t, <-ended, mutex.ErrDeadline)
		require.Equal(t, 20*time.Minute-5*time.Second, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = c.UnlockAll(ctx, b, a) // b is not lost, but cannot be released
		require.ErrorIs(t, err, mutex.ErrLost)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, a.Unlock(t.Context()), "it was told")
		link.Set(memetcd.Faults{})
		time.Sleep(3 * time.Second)
		for _, name := range []string{"a", "c"} {
			l, err := admin.TryLock(t.Context(), name)
			require.NoError(t, err)
			require.NoError(t, l.Unlock(t.Context()))
		}
		require.NoError(t, b.Unlock(t.Context()))
	})
}

// TestRestored restores etcd from a backup while locks are held. Whoever learns from the answer of a
// transaction that etcd is another, or older than the lock, has lost it, even if its record is back.
func TestRestored(t *testing.T) {
	for name, tc := range map[string]struct {
		how   memetcd.Restored
		older bool // the backup is older than the lock
		lost  bool
	}{
		"another cluster":                    {how: memetcd.Restored{NewCluster: true}, lost: true},
		"another cluster, older":             {how: memetcd.Restored{NewCluster: true}, older: true, lost: true},
		"in place":                           {how: memetcd.Restored{}},
		"in place, older":                    {how: memetcd.Restored{}, older: true, lost: true},
		"another cluster, bumped, and older": {how: memetcd.Restored{NewCluster: true, Bump: 1000}, older: true, lost: true},
	} {
		for request, learn := range map[string]func(context.Context, *mutex.Lock) error{
			"Alive":  func(ctx context.Context, l *mutex.Lock) error { return l.Alive(ctx) },
			"Unlock": func(ctx context.Context, l *mutex.Lock) error { return l.Unlock(ctx) },
		} {
			t.Run(name+", "+request, func(t *testing.T) {
				simulated(t, func(t *testing.T, etcd *memetcd.Cluster, connect connect) {
					c, _ := connect(mutex.Backtrace(false))
					_, admin := connect()
					backup := etcd.Snapshot()
					l, err := c.Lock(t.Context(), "a")
					require.NoError(t, err)
					if !tc.older {
						backup = etcd.Snapshot()
					}
					etcd.Restore(backup, tc.how)
					err = learn(t.Context(), l)
					if !tc.lost {
						require.NoError(t, err)
						require.NoError(t, l.Unlock(t.Context()))
						return
					}
					require.ErrorIs(t, err, mutex.ErrLost)
					require.ErrorIs(t, err, mutex.ErrRestored)
					_ = l.Unlock(t.Context())
					synctest.Wait()
					time.Sleep(time.Second)
					resp, err := admin.Get(t.Context(), "/mutexes/a/uuid")
					require.NoError(t, err)
					require.Empty(t, resp.Kvs)
				})
			})
		}
	}
}

// TestCmpAfterARestore compares in a transaction after a restore that has given the token of the lock
// to another.
func TestCmpAfterARestore(t *testing.T) {
	simulated(t, func(t *testing.T, etcd *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Backtrace(false))
		other, _ := connect(mutex.Backtrace(false))
		backup := etcd.Snapshot()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		guarded := func() bool {
			resp, err := link.Txn(t.Context()).If(l.Cmp()).Commit()
			require.NoError(t, err)
			return resp.Succeeded
		}
		require.True(t, guarded())
		etcd.Restore(backup, memetcd.Restored{})
		taken, err := other.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, l.Token(), taken.Token())
		require.False(t, guarded())
		require.NoError(t, taken.Unlock(t.Context()))
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrLost)
	})
}

// TestARecoveredLockCountsFromTheAttemptThatTookIt loses the answer of the attempt that takes the lock, and
// then requests, until the deadlines of further attempts are later ones.
func TestARecoveredLockCountsFromTheAttemptThatTookIt(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(20 * time.Second))
		sent := 0
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if _, ok := req.(*etcdserverpb.TxnRequest); ok {
				sent++
			}
			return memetcd.Faults{HoldAnswers: sent == 1, HoldRequests: sent == 2 || sent == 3}
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		l, err := c.TryLock(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, 4, sent)
		require.Greater(t, time.Since(began), 10*time.Second)
		require.WithinDuration(t, began.Add(18*time.Second), l.Deadline(), time.Millisecond)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// TestARenewalLearnsOfALoss has no watch that could show it first.
func TestARenewalLearnsOfALoss(t *testing.T) {
	for want, taken := range map[error]bool{mutex.ErrForced: false, mutex.ErrTaken: true} {
		simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
			c, link := connect(mutex.Backtrace(false))
			other, admin := connect()
			link.OnRequest(func(req memetcd.Message) memetcd.Faults {
				_, watch := req.(*etcdserverpb.WatchRequest)
				return memetcd.Faults{HoldRequests: watch}
			})
			l, err := c.Lock(t.Context(), "a")
			require.NoError(t, err)
			_, err = admin.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
			require.NoError(t, err)
			if taken {
				l, err := other.Lock(t.Context(), "a")
				require.NoError(t, err)
				defer func() { require.NoError(t, l.Unlock(t.Context())) }()
			}
			time.Sleep(time.Second)
			require.NoError(t, l.Held())
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.ErrorIs(t, l.Alive(ctx), want)
			require.ErrorIs(t, l.Held(), want)
			require.ErrorIs(t, l.Unlock(t.Context()), want)
		})
	}
}

// TestADeadlineThatWasMovedIsRenewedAllTheSame has an operator who gave the holder more time: Alive counts from now again.
func TestADeadlineThatWasMovedIsRenewedAllTheSame(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, _ := connect(mutex.Patience(time.Minute), mutex.Backtrace(false))
		_, admin := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		field := func(name string) string {
			resp, err := admin.Get(t.Context(), "/mutexes/a/"+name)
			require.NoError(t, err)
			require.Len(t, resp.Kvs, 1)
			return string(resp.Kvs[0].Value)
		}
		_, err = admin.Put(t.Context(), "/mutexes/a/auto_unlock_at", fmt.Sprint(time.Now().Add(time.Hour).Unix()))
		require.NoError(t, err)
		require.NoError(t, l.Alive(t.Context()))
		require.WithinDuration(t, time.Now(), seconds(t, field("alive_at")), time.Second)
		require.WithinDuration(t, time.Now().Add(time.Minute), seconds(t, field("auto_unlock_at")), time.Second)
		status, err := admin.Get(t.Context(), "/mutexes/a/status")
		require.NoError(t, err)
		require.Empty(t, status.Kvs, "none was given")
		require.NoError(t, l.Unlock(t.Context()))
	})
}
