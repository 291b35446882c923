//go:build go1.25

package mutex_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// An attempt without an answer is repeated after a fifth of the patience, and after five seconds at most.
func TestAttemptsAreRepeated(t *testing.T) {
	for patience, after := range map[time.Duration]time.Duration{5 * time.Second: time.Second, 24 * time.Hour: 5 * time.Second} {
		simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
			c, link := connect(mutex.Patience(patience))
			disturb(link, 1, memetcd.Faults{HoldRequests: true})
			began := time.Now()
			l, err := c.TryLock(t.Context(), "a")
			require.NoError(t, err)
			require.InDelta(t, after, time.Since(began), float64(50*time.Millisecond), "and a pause")
			require.NoError(t, l.Unlock(t.Context()))
		})
	}
}

// The deadlines of a lock that is taken after a long outage are not those of its first attempt.
func TestLockAfterALongOutage(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(100*time.Second), mutex.Expect(50*time.Second), mutex.Observe(nil))
		for outage := 10 * time.Second; outage < 20*time.Minute; outage = outage * 3 / 2 {
			link.Set(memetcd.Unreachable())
			time.AfterFunc(outage, func() { link.Set(memetcd.Faults{}) })
			l, err := c.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.WithinRange(t, l.Deadline(), time.Now().Add(60*time.Second), time.Now().Add(95*time.Second))
			resp, err := link.Get(t.Context(), "/mutexes/a/locked_at")
			require.NoError(t, err)
			require.WithinRange(t, seconds(t, string(resp.Kvs[0].Value)), time.Now().Add(-35*time.Second), time.Now().Add(time.Millisecond))
			require.NoError(t, l.Unlock(t.Context()))
		}
	})
}

// What a lock does not say has no key.
func TestFieldsWithoutAValue(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		c := w.client(mutex.Owner(""), mutex.Backtrace(false), mutex.Metadata("note", ""))
		w.lock(c, "a")
		require.Equal(t, []string{
			"a/alert_at", "a/auto_unlock_at", "a/hostname", "a/locked_at", "a/note", "a/pid", "a/uuid",
		}, slices.Sorted(maps.Keys(w.fields())))
		_, err := w.etcd.Delete(t.Context(), w.prefix+"a/", clientv3.WithPrefix())
		require.NoError(t, err)
	})
}
