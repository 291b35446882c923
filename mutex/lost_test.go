//go:build go1.25

package mutex_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

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
