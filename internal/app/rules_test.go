package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestPolicies(t *testing.T) {
	t.Parallel()
	const longer = 10 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Policies = []config.Policy{
			{Match: "deploy/**", Mode: "dry-run", Grace: c.Reaper.Grace},
			{Match: "manual/*", Mode: "off", Grace: c.Reaper.Grace},
			{Match: "patient", Mode: "enforce", Grace: longer},
		}
	})
	d.awaitLeading()
	patientGone, otherGone := watchGone(t, e, "patient"), watchGone(t, e, "other")
	worker := holder{Etcd: e, t: t, host: "worker-1"}
	deadlines := map[string]time.Time{}
	for _, name := range []string{"deploy/a/b", "manual/a", "patient", "other"} {
		deadlines[name] = worker.lock(name, 0)
	}
	patient := patientGone()
	require.GreaterOrEqual(t, patient.Sub(deadlines["patient"]), longer)
	require.True(t, otherGone().Before(patient))
	d.awaitMetric(1, "unlocker_would_unlock_total")
	d.awaitMetric(2, "unlocker_locks", "state", "expired")
	d.awaitMetric(2, "unlocker_forced_unlocks_total") // the answer may come after the event
	require.Len(t, d.names(api.LogWouldRemove), 1)
	require.Len(t, e.Keys(""), 8)
}

// early is how long before due a worker takes a lock.
const early = 100 * time.Millisecond

func TestRateLimit(t *testing.T) {
	t.Parallel()
	const n, rate = 13, 6
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.RateLimit, c.Reaper.BatchSize = rate, 1 })
	d.awaitReaping()
	due := time.Now().Add(time.Second)
	putLocks(e, n, due)
	awaitKeys(t, e, 0, "")
	require.Greater(t, time.Since(due), newConfig(nil).Reaper.Grace+(n-1)*time.Second/rate-early)
}

// If many locks come due at once, each further one is delayed.
func TestS3_Storm(t *testing.T) {
	t.Parallel()
	const n, delay = 10, 10 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Reaper.Storm.MinLocks, c.Reaper.Storm.Window, c.Reaper.Storm.Delay = n, time.Minute, delay
	})
	d.awaitLeading()
	deadline := time.Now().Add(2 * time.Second)
	putLocks(e, 2*n, deadline)
	d.awaitMetric(n, "unlocker_reaper_storm_delayed")
	awaitKeys(t, e, n*fieldsOfALock, "")
	require.Zero(t, d.metric("unlocker_reaper_hold"))
	d.awaitMetric(0, "unlocker_reaper_backlog") // those that are gone are seen to be, and the others are not due
	var status api.Status
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
	require.Equal(t, []int{n, n}, []int{status.Storm.Delayed, status.Storm.RemovedBefore})
	require.WithinRange(t, status.Storm.Until, deadline.Add(delay), time.Now().Add(delay+newConfig(nil).Reaper.Grace))
	var page api.LockPage
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks?state=expired", &page))
	require.Len(t, page.Locks, n)
	gone := watchGone(t, e, page.Locks[0].Name)
	for _, l := range page.Locks {
		require.Regexp(t, `^waits until `+clock+`: .*; many locks came due at once, which adds 10s$`, l.Explanation)
		require.False(t, l.Due.Before(deadline.Add(newConfig(nil).Reaper.Grace+delay-early)), l.Due)
	}
	require.GreaterOrEqual(t, gone().Sub(deadline), newConfig(nil).Reaper.Grace+delay-early)
	awaitKeys(t, e, 0, "")
	d.awaitMetric(0, "unlocker_reaper_storm_delayed")
	d.awaitMetric(2*n, "unlocker_forced_unlocks_total")
}
