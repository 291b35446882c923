//go:build go1.25

package mutex_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// uuidIn returns the uuid of a lock, or "" if it is free.
func uuidIn(t *testing.T, link *memetcd.Link, name string) string {
	t.Helper()
	resp, err := link.Get(t.Context(), "/mutexes/"+name+"/uuid")
	require.NoError(t, err)
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

// nextUUID waits until a lock is taken, and returns its uuid then.
func nextUUID(t *testing.T, link *memetcd.Link, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	events := (<-link.Watch(ctx, "/mutexes/"+name+"/uuid", clientv3.WithFilterDelete())).Events
	require.Len(t, events, 1)
	return string(events[0].Kv.Value)
}

// TestALeaderLeadsAgainAfterAnOutage takes the quorum of etcd away until the leader has lost its lock. It has not called
// Unlock, and there is no daemon.
func TestALeaderLeadsAgainAfterAnOutage(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		c, _ := connect(mutex.KeepAlive(time.Hour), mutex.Patience(10*time.Second))
		first, err := c.Lock(t.Context(), "leader")
		require.NoError(t, err)
		<-time.After(time.Minute)
		cluster.Set(memetcd.Faults{NoLeader: true})
		time.AfterFunc(12*time.Second, func() { cluster.Set(memetcd.Faults{}) })
		began := time.Now()
		require.ErrorIs(t, done(t, first.Context(t.Context())), mutex.ErrUnreachable)
		again, err := c.Lock(t.Context(), "leader", mutex.Wait(time.Minute))
		require.NoError(t, err)
		require.Less(t, time.Since(began), 17*time.Second)
		require.Greater(t, again.Token(), first.Token())
		<-time.After(time.Hour / 2)
		require.NoError(t, again.Held(), "released by what was left for the first")
		require.ErrorIs(t, first.Unlock(t.Context()), mutex.ErrUnreachable)
		<-time.After(time.Minute)
		require.NoError(t, again.Unlock(t.Context()))
	})
}

// TestALostLockIsReleasedSoonAfterALongOutage has a leader that was lost early in an outage.
func TestALostLockIsReleasedSoonAfterALongOutage(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(10*time.Second))
		l, err := c.Lock(t.Context(), "leader")
		require.NoError(t, err)
		cluster.Set(memetcd.Faults{NoLeader: true})
		<-time.After(2 * time.Hour)
		require.ErrorIs(t, l.Held(), mutex.ErrUnreachable)
		cluster.Set(memetcd.Faults{})
		<-time.After(4 * time.Second)
		require.Empty(t, uuidIn(t, link, "leader"))
	})
}

// TestALostLockStaysUntilItsOwnDeadline gives etcd back to a holder whose work is still stopping.
func TestALostLockStaysUntilItsOwnDeadline(t *testing.T) {
	for name, unlocks := range map[string]bool{"its work stops": false, "its work has ended": true} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(30*time.Second))
				_, admin := connect()
				l, err := c.Lock(t.Context(), "a")
				require.NoError(t, err)
				link.Set(memetcd.Unreachable())
				require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrUnreachable)
				link.Set(memetcd.Faults{})
				<-time.After(10 * time.Millisecond)           // etcd may execute a renewal now that was sent before
				deadline := l.Deadline().Add(3 * time.Second) // of which a tenth of the patience was left
				require.Equal(t, l.UUID(), uuidIn(t, admin, "a"))
				if unlocks {
					require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrUnreachable)
				} else {
					<-time.After(time.Until(deadline) - time.Millisecond)
					require.Equal(t, l.UUID(), uuidIn(t, admin, "a"))
					<-time.After(time.Millisecond)
				}
				synctest.Wait()
				require.Empty(t, uuidIn(t, admin, "a"))
			})
		})
	}
}

// TestWhatIsLeftIsNobodyElses lets another have the lock, and renew it, while the former holder is cut off.
func TestWhatIsLeftIsNobodyElses(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(10*time.Second), mutex.Identity("pod-0"))
		other, admin := connect(mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute), mutex.Identity("pod-0"))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Unreachable())
		require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrUnreachable)
		<-time.After(time.Minute)
		taken, err := other.TryLock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Faults{})
		<-time.After(10 * time.Minute)
		require.NoError(t, taken.Held())
		require.Equal(t, taken.UUID(), uuidIn(t, admin, "a"))
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrUnreachable)
		<-time.After(time.Minute)
		require.NoError(t, taken.Unlock(t.Context()))
	})
}

// TestALockLostToAFullEtcdIsReleasedOnce has no space until the lock is lost, and no call of Unlock before it is gone.
func TestALockLostToAFullEtcdIsReleasedOnce(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.KeepAlive(time.Hour), mutex.Patience(10*time.Second), mutex.Backtrace(false))
		_, admin := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		require.ErrorIs(t, done(t, l.Context(t.Context())), mutex.ErrNoSpace)
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)
		require.Equal(t, l.UUID(), uuidIn(t, admin, "a"))
		<-time.After(10 * time.Second)
		require.Empty(t, uuidIn(t, admin, "a"))
		sent := count[memetcd.Message](link)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrNoSpace)
		<-time.After(time.Minute)
		require.Zero(t, sent.Load())
	})
}

// TestALockThatItsHolderDidNotRenewStays is for the daemon, which alerts: etcd was there, and the work has not ended.
func TestALockThatItsHolderDidNotRenewStays(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		for name, opts := range map[string][]mutex.Option{
			"silent":       nil,
			"maximum hold": {mutex.KeepAlive(time.Minute)},
		} {
			c, link := connect(opts...)
			l, err := c.Lock(t.Context(), name)
			require.NoError(t, err)
			err = done(t, l.Context(t.Context()))
			require.ErrorIs(t, err, mutex.ErrDeadline)
			require.Equal(t, len(opts) > 0, strings.Contains(err.Error(), "maximum hold"), err)
			<-time.After(time.Hour)
			require.Equal(t, l.UUID(), uuidIn(t, link, name))
			require.ErrorIs(t, l.Unlock(context.Background()), mutex.ErrLost)
			synctest.Wait()
			require.Empty(t, uuidIn(t, link, name))
		}
	})
}
