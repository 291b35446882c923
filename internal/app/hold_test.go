package app_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// Nobody can renew while etcd is down: that time delays the removals.
func TestS3_OutageDelaysRemovals(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	grace := newConfig(nil).Reaper.Grace
	worker := holder{Etcd: e, t: t, host: "worker-1"}
	worker.lock("alive", ttl)
	deadline := worker.lock("dead", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "held")
	e.Kill(0)
	killed := time.Now()
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	awaitTime(t, deadline.Add(grace+time.Second))
	outage := time.Since(killed) // at least
	require.NoError(t, e.Restart(t.Context()))
	deadGone := watchGone(t, e, "dead")

	d.awaitMetric(0, "unlocker_reaper_hold")
	held := time.Since(killed)
	require.EqualValues(t, 2, d.metric("unlocker_locks", "state", "expired"), "both are past their deadline and the grace")
	worker.renewUntil(time.Now().Add(ttl+grace), "alive", ttl)
	delay := deadGone().Sub(deadline)
	t.Logf("outage of %s, hold of %s: the lock of the dead holder was removed %s after its deadline", outage, held, delay)
	require.Greater(t, delay, grace+outage)
	require.Less(t, delay, grace+held+late)
	require.EqualValues(t, 1, d.metric("unlocker_forced_unlocks_total"))
}

func TestS3_HoldsAreShown(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	const settle = time.Second
	proxy.Blackhole()
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Reaper.Settle, c.Reaper.Freshness = settle, 2*time.Second })
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "starting")
	start := time.Now()
	require.NoError(t, proxy.Heal())
	d.awaitReaping()
	require.Greater(t, time.Since(start), settle)

	proxy.Blackhole()
	var status api.Status
	etcdtest.Eventually(t, func() bool { // the watch of the pauses may be silent first, which needs no time to settle
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
		return len(status.Holds) > 0 && strings.HasPrefix(status.Holds[0].Reason, "the watch ")
	})
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	require.EqualValues(t, 1, d.metric("unlocker_reaper_hold"), "no other hold")
	d.awaitMetric(0, "unlocker_etcd_up")
	healed := time.Now()
	require.NoError(t, proxy.Heal())
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(0, "unlocker_reaper_hold")
	require.Greater(t, time.Since(healed), settle)
	for _, hold := range []string{"starting", "disconnected"} {
		etcdtest.Eventually(t, func() bool { // etcd may have been slow once more
			began, ended := d.holds(hold)
			return began > 0 && began == ended
		}, hold)
	}
}

// holds counts the log lines about the beginning and the end of a hold.
func (d *daemon) holds(hold string) (began, ended int) {
	for _, line := range d.log.Lines("") {
		switch {
		case line["hold"] != hold:
		case line["msg"] == api.LogHoldEnds:
			ended++
		default:
			began++
		}
	}
	return began, ended
}

// At its quota etcd refuses every put, so holders cannot renew. Locks that come due then
// stay until their holders could renew again.
func TestS3_AlarmHolds(t *testing.T) {
	t.Parallel()
	const n = 20
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 4 << 20})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	c := newConfig(nil).Reaper
	due := time.Now().Add(12 * time.Second)
	putLocks(e, n, due)
	free := e.Fill()
	require.True(t, time.Now().Before(due), "the alarm must be raised before the locks are due")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "alarm")
	d.awaitMetric(1, "unlocker_etcd_alarm", "alarm", "NOSPACE")
	awaitTime(t, due.Add(c.Grace+time.Second))
	require.EqualValues(t, n, d.metric("unlocker_locks", "state", "expired"))
	require.Zero(t, d.metric("unlocker_reaper_backlog"), "while the outage lasts none is due")
	const want = `^waits until ` + clock + `: .*; outages of etcd add .*; removals on hold since ` + clock +
		`: etcd raised the alarm NOSPACE; it waits longer while that lasts$`
	etcdtest.Eventually(t, func() bool { return matches(want, d.page()["many/00000"].Explanation) })
	require.Len(t, e.Keys(""), n*fieldsOfALock)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))

	gone := watchGone(t, e, "many/00000")
	free()
	disarmed := time.Now()
	require.Greater(t, gone().Sub(disarmed), c.Settle)
	awaitKeys(t, e, 0, "")
	d.awaitMetric(n, "unlocker_forced_unlocks_total", "trigger", "expiry")
	d.requireNoFailures()
	d.awaitMetric(0, "unlocker_etcd_alarm")
	d.awaitMetric(0, "unlocker_reaper_hold")
}
