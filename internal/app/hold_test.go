package app_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

// While etcd was away nobody could renew: that time does not count.
func TestS3_OutageIsCredited(t *testing.T) {
	const ttl = 3 * time.Second
	cluster, client := newEtcd(t, localetcd.Options{})
	d := startDaemon(t, cluster.Endpoints())
	d.awaitReaping()
	grace := newConfig(nil).Reaper.Grace
	worker := owner{t: t, client: client, host: "worker-1.example.org"}
	worker.lock("alive", ttl)
	deadline := worker.lock("dead", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "held")
	killed := time.Now()
	cluster.Kill(0)
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	awaitTime(t, deadline.Add(grace+time.Second))
	restart(t, cluster)
	outage := time.Since(killed)
	deadGone := watchGone(t, client, "dead")

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
	cluster, _ := newEtcd(t, localetcd.Options{})
	proxy, err := localetcd.NewProxy(cluster.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
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
		began, ended := d.log.holds(hold)
		require.Positive(t, began, hold)
		require.Equal(t, began, ended, hold)
	}
}

// holds counts the lines that say that a hold begins and ends.
func (l *logBuffer) holds(hold string) (began, ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
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
	const n = 20
	cluster, client := newEtcd(t, localetcd.Options{QuotaBackendBytes: 4 << 20})
	d := startDaemon(t, cluster.Endpoints())
	d.awaitReaping()
	c := newConfig(nil).Reaper
	due := time.Now().Add(4 * time.Second)
	putLocks(t, client, n, due)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	fill(ctx, t, client)
	require.True(t, time.Now().Before(due), "the alarm was to come first")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "alarm")
	require.EqualValues(t, 1, d.metric("unlocker_etcd_alarm", "alarm", "NOSPACE"))
	awaitTime(t, due.Add(c.Grace+time.Second))
	require.EqualValues(t, n, d.metric("unlocker_reaper_backlog"))
	require.EqualValues(t, n*7, keys(t, client, prefix))
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))

	gone := watchGone(t, client, "many/00000")
	empty(ctx, t, client, cluster.Endpoints()[0])
	disarmed := time.Now()
	require.Greater(t, gone().Sub(disarmed), c.Settle)
	awaitKeys(t, client, 0, prefix)
	d.awaitMetric(n, "unlocker_forced_unlocks_total", "trigger", "expiry")
	require.Zero(t, d.metric("unlocker_forced_unlock_failures_total"))
	require.Zero(t, d.metric("unlocker_etcd_alarm"))
	require.Zero(t, d.metric("unlocker_reaper_hold"))
}

// fill writes until etcd is at its quota.
func fill(ctx context.Context, t *testing.T, client *clientv3.Client) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		_, err = client.Put(ctx, fmt.Sprintf("/filler/%d", i), strings.Repeat("x", 500<<10))
	}
	require.ErrorContains(t, err, "database space exceeded")
}

// empty does what an operator does against the alarm.
func empty(ctx context.Context, t *testing.T, client *clientv3.Client, endpoint string) {
	t.Helper()
	deleted, err := client.Delete(ctx, "/filler/", clientv3.WithPrefix())
	require.NoError(t, err)
	_, err = client.Compact(ctx, deleted.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = client.Defragment(ctx, endpoint)
	require.NoError(t, err)
	_, err = client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	require.NoError(t, err)
}
