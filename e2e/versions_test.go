//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// freshness is longer than a busy machine stalls.
const freshness = 10 * time.Second

// The whole service, on each version of etcd.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			etcd := startEtcd(t, version)
			later := time.Now().Add(time.Hour)
			const held = 2000
			etcd.putLocks("held", held, later, later)
			d := startDaemon(t, etcd.addr, "--etcd-request-timeout", "1m", "--reaper-freshness", freshness.String())
			d.awaitMetric(1, "unlocker_etcd_up")
			t.Run("lists", func(t *testing.T) { testListing(t, d, version, held) })
			t.Run("removes a lock that expires", func(t *testing.T) { testRemoval(t, d, etcd) })
			t.Run("removes a batch in few transactions", func(t *testing.T) { testBatch(t, d, etcd) })
			t.Run("keeps an idle watch", func(t *testing.T) { testIdleWatch(t, d) })
			t.Run("survives an outage", func(t *testing.T) { testOutage(t, d, etcd) })
			count, _ := etcd.keys("")
			require.EqualValues(t, held*fieldsOfALock, count, "only locks that were due are removed")
			require.Zero(t, d.metric("unlocker_resync_drift_total"))
		})
	}
}

// Since 3.7 a listing is one stream. Before, it is read in pages.
func testListing(t *testing.T, d *daemon, version string, locks float64) {
	require.Equal(t, locks, d.metric("unlocker_locks", "state", "held"))
	code := "Unimplemented"
	if version == newest {
		code = "OK"
	}
	require.Eventually(t, func() bool { // others than that of the locks may be in flight
		_, body := d.get("/metrics")
		handled := etcdtest.Metric(t, body, "grpc_client_handled_total", "grpc_method", "RangeStream", "grpc_code", code)
		return handled > 0 && handled == etcdtest.Metric(t, body, "grpc_client_started_total", "grpc_method", "RangeStream")
	}, soon, poll)
}

func testRemoval(t *testing.T, d *daemon, etcd *server) {
	before := d.metric("unlocker_forced_unlocks_total", "trigger", "expiry")
	due := time.Now().Add(2 * time.Second)
	etcd.putLocks("one", 1, due, due)
	etcd.awaitGone("one/")
	require.True(t, time.Now().After(due.Truncate(time.Second)))
	d.awaitMetric(before+1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.awaitMetric(0, "unlocker_locks", "state", "expired")
	require.EqualValues(t, fieldsOfALock, d.awaitLine(api.LogRemoved)["keys_deleted"])
	require.NotNil(t, d.line(api.LogRemoving), "it comes first")
	o := command(t, etcd.addr, "history", "one/00000", "--url", d.web("http"))
	require.Zero(t, o.code, o.stderr)
	require.Regexp(t, `  expired\n    ended .* UTC by replica \S+\n$`, o.stdout)
}

func testBatch(t *testing.T, d *daemon, etcd *server) {
	const locks = 320
	due := time.Now().Add(3 * time.Second)
	etcd.putLocks("batch", locks, due, due)
	_, before := etcd.keys("")
	etcd.awaitGone("batch/")
	_, after := etcd.keys("")
	require.Less(t, after-before, int64(locks/4), "each transaction is one revision")
	require.Zero(t, d.metric("unlocker_forced_unlock_failures_total"))
	require.Zero(t, d.metric("unlocker_forced_unlock_conflicts_total"))
}

// The watch continues without events for longer than the freshness, since etcd answers the
// progress requests of the daemon.
func testIdleWatch(t *testing.T, d *daemon) {
	restarts := d.metric("unlocker_watch_restarts_total")
	since := time.Now()
	require.Eventually(t, func() bool {
		require.Zero(t, d.metric("unlocker_reaper_hold", "reason", "disconnected"))
		return time.Since(since) > freshness+2*time.Second
	}, soon, 200*time.Millisecond)
	progress := d.metric("unlocker_watch_last_progress_timestamp_seconds")
	require.Less(t, float64(time.Now().UnixMilli())/1000-progress, freshness.Seconds())
	require.Equal(t, restarts, d.metric("unlocker_watch_restarts_total"))
}

// etcd is killed, locks come due, and etcd starts again.
func testOutage(t *testing.T, d *daemon, etcd *server) {
	now := time.Now()
	etcd.putLocks("meanwhile", 50, now.Add(-time.Second), now.Add(15*time.Second))
	d.awaitMetric(50, "unlocker_locks", "state", "overdue")
	etcd.kill()
	d.awaitMetric(0, "unlocker_etcd_up")
	d.awaitMetric(50, "unlocker_locks", "state", "expired")
	status, _ := d.get("/livez")
	require.Equal(t, 200, status)
	etcd.run()
	etcd.awaitGone("meanwhile/")
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(0, "unlocker_locks", "state", "expired")
}
