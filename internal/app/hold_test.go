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
	"github.com/etcd-unlocker/unlocker/internal/message"
)

// While etcd was away nobody could renew: that time does not count.
func TestS3_OutageIsCredited(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	grace := newConfig(nil).Reaper.Grace
	worker := owner{Etcd: e, t: t, host: "worker-1"}
	worker.lock("alive", ttl)
	deadline := worker.lock("dead", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "held")
	killed := time.Now()
	e.Kill(0)
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	awaitTime(t, deadline.Add(grace+time.Second))
	require.NoError(t, e.Restart(t.Context()))
	outage := time.Since(killed)
	deadGone := watchGone(t, e, "dead")

	d.awaitMetric(0, "unlocker_reaper_hold")
	held := time.Since(killed)
	require.EqualValues(t, 2, d.metric("unlocker_locks", "state", "expired"), "both are past their deadline and the grace")
	worker.renewUntil(time.Now().Add(ttl+grace), "alive", ttl)
	spared := deadGone().Sub(deadline)
	t.Logf("an outage of %s, held for %s: the dead one's lock went %s after its deadline", outage, held, spared)
	require.Greater(t, spared, grace+outage)
	require.Less(t, spared, grace+held+late)
	require.EqualValues(t, 1, d.metric("unlocker_forced_unlocks_total"))
}

func TestS3_HoldsAreShown(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	const settle = time.Second
	start := time.Now()
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) { c.Reaper.Settle = settle })
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "starting")
	d.awaitReaping()
	require.Greater(t, time.Since(start), settle)

	proxy.Blackhole()
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	require.EqualValues(t, 1, d.metric("unlocker_reaper_hold"), "no other hold")
	d.awaitMetric(0, "unlocker_etcd_up")
	healed := time.Now()
	require.NoError(t, proxy.Heal())
	d.awaitMetric(1, "unlocker_etcd_up")
	d.awaitMetric(0, "unlocker_reaper_hold")
	require.Greater(t, time.Since(healed), settle)
	for _, hold := range []string{"starting", "disconnected"} {
		began, ended := d.holds(hold)
		require.Positive(t, began, hold)
		require.Equal(t, began, ended, hold)
	}
}

// holds counts the lines that say that a hold begins and ends.
func (d *daemon) holds(hold string) (began, ended int) {
	for _, line := range d.log.Lines("") {
		switch {
		case line["hold"] != hold:
		case line["msg"] == message.HoldEnds:
			ended++
		default:
			began++
		}
	}
	return began, ended
}

// At its quota etcd refuses each put: owners cannot renew, so what falls due
// stays until they had the chance again.
func TestS3_AlarmHolds(t *testing.T) {
	t.Parallel()
	const n = 20
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 4 << 20})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	c := newConfig(nil).Reaper
	due := time.Now().Add(5 * time.Second)
	putLocks(e, n, due)
	free := e.Fill()
	require.True(t, time.Now().Before(due), "the alarm was to come first")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "alarm")
	require.EqualValues(t, 1, d.metric("unlocker_etcd_alarm", "alarm", "NOSPACE"))
	awaitTime(t, due.Add(c.Grace+time.Second))
	require.EqualValues(t, n, d.metric("unlocker_locks", "state", "expired"))
	require.Zero(t, d.metric("unlocker_reaper_backlog"), "while the outage lasts none is due")
	var page api.LockPage
	require.Equal(t, http.StatusOK, d.ask("/api/v1/locks?limit=1", &page))
	require.Regexp(t, `^waits until `+clock+`: .*; outages of etcd add .*; removals on hold since `+clock+
		`: etcd raised the alarm NOSPACE; it waits longer while that lasts$`, page.Locks[0].Explanation)
	require.Len(t, e.Keys(""), n*fieldsOfALock)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))

	gone := watchGone(t, e, "many/00000")
	free()
	disarmed := time.Now()
	require.Greater(t, gone().Sub(disarmed), c.Settle)
	awaitKeys(t, e, 0, "")
	d.awaitMetric(n, "unlocker_forced_unlocks_total", "trigger", "expiry")
	require.Zero(t, d.metric("unlocker_forced_unlock_failures_total"))
	require.Zero(t, d.metric("unlocker_etcd_alarm"))
	require.Zero(t, d.metric("unlocker_reaper_hold"))
}
