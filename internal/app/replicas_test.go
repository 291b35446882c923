package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// pair is two replicas, each with its own proxy to etcd.
type pair struct {
	*etcdtest.Etcd
	leader, standby *daemon
	// leaderProxy is the proxy of the leader.
	leaderProxy *localetcd.Proxy
}

// newPair starts the leader first.
func newPair(t *testing.T) pair {
	t.Helper()
	e := etcdtest.Start(t, localetcd.Options{})
	p := pair{Etcd: e}
	p.leader, p.leaderProxy = startBehindProxy(t, e)
	p.leader.awaitMetric(1, "unlocker_leader")
	p.standby, _ = startBehindProxy(t, e)
	p.leader.awaitReaping()
	p.standby.awaitReaping()
	require.Zero(t, p.standby.metric("unlocker_leader"))
	return p
}

func startBehindProxy(t *testing.T, e *etcdtest.Etcd) (*daemon, *localetcd.Proxy) {
	t.Helper()
	proxy := e.Proxy(0)
	return startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) {
		// The key of a leader that dies lasts until the standby has acted.
		c.Election.TTL = 30 * time.Second
	}), proxy
}

// lock acquires a lock, and returns when both replicas have seen it. due is when it may be
// removed.
func (p pair) lock(t *testing.T, name string, ttl time.Duration) (due time.Time, gone func() time.Time) {
	t.Helper()
	gone = watchGone(t, p.Etcd, name)
	deadline := holder{Etcd: p.Etcd, t: t, host: "worker-1"}.lock(name, ttl)
	for _, d := range []*daemon{p.leader, p.standby} {
		d.awaitMetric(1, "unlocker_lock_acquisitions_total") // which remains when the lock does not
	}
	return deadline.Add(newConfig(nil).Reaper.Grace), gone
}

// late is the maximum delay of a removal on a busy machine. It is less than the delay of a
// standby.
const late = standbyDelay - time.Second

// delay returns how long after it was due a lock was removed. A busy machine has outages of etcd, which add to the due.
func (d *daemon) delay(name string) time.Duration {
	d.t.Helper()
	var removed []api.Forced
	etcdtest.Eventually(d.t, func() bool {
		removed = d.forced(name)
		return len(removed) == 1 && removed[0].Verdict != nil
	})
	return removed[0].At.Sub(removed[0].Verdict.Due)
}

func TestS6_TwoReplicas(t *testing.T) {
	t.Parallel()
	t.Run("the leader acts first", func(t *testing.T) {
		t.Parallel()
		const n = 50
		p := newPair(t)
		putLocks(p.Etcd, n, time.Now().Add(2*time.Second))
		p.standby.awaitMetric(n, "unlocker_lock_acquisitions_total")
		awaitKeys(t, p.Etcd, 0, "")
		p.leader.awaitMetric(n, "unlocker_forced_unlocks_total")
		p.standby.awaitMetric(n, "unlocker_lock_releases_total", "by", "other")
		for _, name := range []string{"unlocker_forced_unlocks_total", "unlocker_forced_unlock_conflicts_total"} {
			require.Zero(t, p.standby.metric(name), name)
		}
		require.Empty(t, p.standby.names(api.LogRemoving))
	})
	// All connections of the leader break. For etcd this is the same as a SIGKILL: the
	// lease remains until its TTL ends.
	t.Run("the leader dies", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		due, gone := p.lock(t, "orphaned", 2*time.Second)
		p.leaderProxy.Cut()
		require.GreaterOrEqual(t, gone().Sub(due), standbyDelay, "the key of the leader must still exist")
		delay := p.standby.delay("orphaned")
		t.Logf("leader killed: the standby removed the lock %s after it was due", delay)
		require.Less(t, delay, standbyDelay+late)
		p.standby.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
		require.Zero(t, p.leader.metric("unlocker_forced_unlocks_total"))
		p.leader.awaitMetric(0, "unlocker_leader")
		p.standby.awaitMetric(1, "unlocker_leader")
	})
	t.Run("the leader stops", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		due, gone := p.lock(t, "handed-over", 15*time.Second)
		stopping := time.Now()
		p.leader.stop()
		stopped := time.Now()
		p.standby.awaitMetric(1, "unlocker_leader")
		t.Logf("leader stopped in %s, the standby led at most %s later", stopped.Sub(stopping), time.Since(stopped))
		require.True(t, time.Now().Before(due), "the next leader must be elected before the lock is due")
		require.GreaterOrEqual(t, gone().Sub(due), time.Duration(0))
		delay := p.standby.delay("handed-over")
		t.Logf("leader stopped: the next one removed the lock %s after it was due", delay)
		require.Less(t, delay, late, "no delay is added")
		require.Empty(t, p.leader.names(api.LogRemoved))
		p.standby.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	})
}

// The leader of the election is not a replica, and does nothing.
func TestS6_ForeignLeader(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	session, err := concurrency.NewSession(e.Client, concurrency.WithContext(t.Context()))
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	require.NoError(t, concurrency.NewElection(session, "/unlocker/leader/mutexes").Campaign(t.Context(), "another"))

	p := pair{Etcd: e, leader: startDaemon(t, e.Endpoints()), standby: startDaemon(t, e.Endpoints())}
	p.leader.awaitReaping()
	p.standby.awaitReaping()
	due, gone := p.lock(t, "unled", time.Second)
	require.GreaterOrEqual(t, gone().Sub(due), standbyDelay)
	delay := p.leader.delay("unled")
	t.Logf("foreign leader: the lock was removed %s after it was due", delay)
	require.Less(t, delay, standbyDelay+late)
	var removed float64
	for _, d := range []*daemon{p.leader, p.standby} {
		d.awaitMetric(0, "unlocker_locks")
		d.awaitMetric(1, "unlocker_lock_releases_total")
		require.Zero(t, d.metric("unlocker_leader"))
		removed += d.metric("unlocker_forced_unlocks_total")
	}
	require.EqualValues(t, 1, removed)
}
