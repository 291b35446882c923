package app_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A lock is held, overdue and removed. Each step is shown in the metrics, and the removal is
// logged.
func TestALockExpires(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("billing/invoices", later, later, "backtrace", "main.go:1")...)

	d.awaitMetric(1, "unlocker_locks", "state", "held")
	require.Zero(t, d.metric("unlocker_lock_info"))
	alert := time.Now().Add(time.Second)
	e.Set("billing/invoices", "alert_at", etcdtest.Stamp(alert))
	d.awaitMetric(1, "unlocker_locks", "state", "overdue")
	require.True(t, time.Now().After(alert))
	require.EqualValues(t, 1, d.metric("unlocker_lock_info", "lock", "billing/invoices",
		"hostname", "worker-1", "owner", "billing"))
	require.InDelta(t, float64(alert.UnixMilli())/1000,
		d.metric("unlocker_lock_alert_timestamp_seconds", "lock", "billing/invoices"), 0.001)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))

	unlock := time.Now().Add(2 * time.Second)
	e.Renew("billing/invoices", time.Now(), unlock)
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	require.True(t, time.Now().After(unlock), "S2: never early")
	d.awaitMetric(0, "unlocker_locks")
	d.awaitMetric(1, "unlocker_forced_unlock_delay_seconds")
	require.EqualValues(t, 1, d.metric("unlocker_lock_releases_total", "by", "self"))
	require.Zero(t, d.metric("unlocker_lock_releases_total", "by", "other"))
	require.EqualValues(t, 1, d.metric("unlocker_lock_hold_duration_seconds"))
	removed := d.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "billing/invoices", "hostname", "worker-1")
	require.InDelta(t, float64(unlock.UnixMilli())/1000, removed, etcdtest.Soon.Seconds())
	require.Zero(t, d.metric("unlocker_lock_info"))
	require.Zero(t, d.metric("unlocker_forced_unlock_conflicts_total"))
	d.requireNoFailures()
	require.Zero(t, d.metric("unlocker_reaper_backlog"))
	require.Empty(t, e.Keys(""))

	lines := d.about("billing/invoices")
	require.GreaterOrEqual(t, len(lines), 2)
	require.Equal(t, api.LogRemoving, lines[0]["msg"])
	record := lines[0]["record"].(map[string]any)
	require.Equal(t, "main.go:1", record["backtrace"])
	require.Equal(t, "u-billing/invoices", record["uuid"])
	require.Equal(t, api.LogRemoved, lines[1]["msg"])
	require.EqualValues(t, 8, lines[1]["keys_deleted"])
}

func TestEtcdAbsentAtStart(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Put(e.Lock("old", time.Now(), time.Now())...)
	e.Kill(0)
	d := startDaemon(t, e.Endpoints())

	status, body := d.get("/livez")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", body)
	etcdtest.Eventually(t, func() bool {
		status, body = d.get("/readyz")
		return strings.Contains(body, "connection refused")
	}, "/readyz does not give the reason")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.True(t, strings.HasPrefix(body, "not ready: the first listing of /mutexes/ is not done: "), body)
	require.Equal(t, 1, strings.Count(body, "\n"))
	require.Zero(t, d.metric("unlocker_etcd_up"))
	require.Zero(t, d.metric("unlocker_last_resync_timestamp_seconds"))

	require.NoError(t, e.Restart(t.Context()))
	d.awaitReady()
	awaitKeys(t, e, 0, "")
}

func TestEtcdDownWhenLocksComeDue(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	due := time.Now().Add(10 * time.Second)
	putLocks(e, 100, due)
	d.awaitMetric(100, "unlocker_locks")
	e.Kill(0)
	d.awaitMetric(0, "unlocker_etcd_up")
	awaitTime(t, due.Add(time.Second))
	d.awaitMetric(100, "unlocker_locks", "state", "expired")
	status, _ := d.get("/readyz")
	require.Equal(t, http.StatusOK, status, "a daemon that has listed stays ready")

	require.NoError(t, e.Restart(t.Context()))
	awaitKeys(t, e, 0, "")
	d.awaitMetric(100, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(0, "unlocker_locks")
}

func TestModesThatRemoveNothing(t *testing.T) {
	t.Parallel()
	for mode, verdicts := range map[string]float64{"dry-run": 3, "off": 0} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := etcdtest.Start(t, localetcd.Options{})
			d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.Mode = mode })
			d.awaitReady()
			due := time.Now().Add(-time.Minute)
			putLocks(e, 3, due)
			d.awaitMetric(3, "unlocker_locks", "state", "expired")
			d.awaitMetric(verdicts, "unlocker_would_unlock_total")
			awaitTime(t, time.Now().Add(2*time.Second))
			require.Equal(t, verdicts, d.metric("unlocker_would_unlock_total"), "one verdict for each lock")
			require.Len(t, d.names(api.LogWouldRemove), int(verdicts))
			require.Zero(t, d.metric("unlocker_reaper_backlog"), "none may be removed")
			require.Zero(t, d.metric("unlocker_forced_unlocks_total"))
			require.Len(t, e.Keys(""), 3*fieldsOfALock)
		})
	}
}

// Locks that a policy keeps are not in the backlog: they would keep UnlockerLockNotReleased firing.
func TestBacklogExcludesLocksThatAPolicyKeeps(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Policies = []config.Policy{{Match: "dry/*", Mode: "dry-run", Grace: c.Reaper.Grace}, {Match: "off/*", Mode: "off", Grace: c.Reaper.Grace}}
	})
	d.awaitReaping()
	due := time.Now()
	for _, name := range []string{"dry/a", "off/b", "c"} {
		e.Put(e.Lock(name, due, due)...)
	}
	d.awaitMetric(1, "unlocker_would_unlock_total")
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.awaitMetric(2, "unlocker_locks", "state", "expired")
	require.Zero(t, d.metric("unlocker_reaper_backlog"))
	require.Len(t, e.Keys(""), 2*fieldsOfALock)
}

// A removal leaves all other keys: etcd's own mutexes, nested names, and keys that are not
// locks, even if there are many.
func TestS4_OthersStay(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	session, err := concurrency.NewSession(e.Client, concurrency.WithContext(t.Context()))
	require.NoError(t, err)
	native := concurrency.NewMutex(session, prefix+"native")
	require.NoError(t, native.Lock(t.Context()))
	past, later := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	e.Put(e.Lock("a/b", later, later)...)
	e.Put(clientv3.OpPut(prefix+"undated/uuid", "u"))
	const junk = 10_000
	var ops []clientv3.Op
	for i := range junk {
		ops = append(ops, clientv3.OpPut(fmt.Sprintf("%sjunk-%05d/whatever", prefix, i), "1"))
	}
	e.Put(ops...)
	before := len(e.Keys(""))

	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	e.Put(e.Lock("a", past, past)...)
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.awaitMetric(1, "unlocker_locks", "state", "held")
	require.EqualValues(t, junk+1, d.metric("unlocker_locks", "state", "malformed"))
	require.EqualValues(t, 1, d.metric("unlocker_locks", "state", "undated"))
	require.Len(t, e.Keys(""), before)
	require.Empty(t, e.Keys("a/uuid"))
	require.Len(t, e.Keys("a/b/"), fieldsOfALock)
	require.True(t, isHeld(t, e.Client, native))
	require.NoError(t, session.Close())
}

func isHeld(t *testing.T, client *clientv3.Client, m *concurrency.Mutex) bool {
	t.Helper()
	resp, err := client.Txn(t.Context()).If(m.IsOwner()).Commit()
	require.NoError(t, err)
	return resp.Succeeded
}

// Two daemons race for a few hundred locks: each lock is removed once, by one of them.
func TestS1_TwoDaemons(t *testing.T) {
	t.Parallel()
	const n = 320
	e := etcdtest.Start(t, localetcd.Options{})
	race := func(c *config.Config) { c.Reaper.StandbyDelay = 0 }
	one, two := startDaemon(t, e.Endpoints(), race), startDaemon(t, e.Endpoints(), race)
	one.awaitReady()
	two.awaitReady()
	putLocks(e, n, time.Now().Add(4*time.Second))
	one.awaitMetric(n, "unlocker_lock_acquisitions_total")
	two.awaitMetric(n, "unlocker_lock_acquisitions_total")
	awaitKeys(t, e, 0, "")

	both := map[string]int{}
	for _, d := range []*daemon{one, two} {
		d.awaitMetric(0, "unlocker_locks")
		d.awaitMetric(n, "unlocker_lock_releases_total")
		removed := d.names(api.LogRemoved)
		var lost map[string]int
		etcdtest.Eventually(t, func() bool { // a conflict is counted before it is logged
			lost = d.names(api.LogConflict)
			ended := d.names(api.LogWithdrawn)
			maps.Copy(ended, lost)
			maps.Copy(ended, removed)
			return len(ended) == len(d.names(api.LogRemoving))
		}, "each attempt has an outcome")
		for name := range removed {
			both[name] += removed[name]
		}
		require.EqualValues(t, len(removed), d.metric("unlocker_forced_unlocks_total"))
		d.awaitMetric(float64(len(removed)), "unlocker_forced_unlock_delay_seconds")
		require.EqualValues(t, len(removed), d.metric("unlocker_lock_releases_total", "by", "self"))
		require.GreaterOrEqual(t, d.metric("unlocker_forced_unlock_conflicts_total"), float64(len(lost)))
		d.requireNoFailures()
		t.Logf("removed %d, lost %d, conflicts %v", len(removed), len(lost), d.metric("unlocker_forced_unlock_conflicts_total"))
	}
	require.Len(t, both, n)
	for name, times := range both {
		require.Equal(t, 1, times, name)
	}
	require.EqualValues(t, n, one.metric("unlocker_forced_unlocks_total")+two.metric("unlocker_forced_unlocks_total"))
}
