package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

func TestPolicies(t *testing.T) {
	const longer = 3 * time.Second
	cluster, client := newEtcd(t, localetcd.Options{})
	d := startDaemon(t, cluster.Endpoints(), func(c *config.Config) {
		c.Policies = []config.Policy{
			{Match: "deploy/**", Mode: "dry-run", Grace: c.Reaper.Grace},
			{Match: "manual/*", Mode: "off", Grace: c.Reaper.Grace},
			{Match: "patient", Mode: "enforce", Grace: longer},
		}
	})
	d.awaitReaping()
	patientGone, otherGone := watchGone(t, client, "patient"), watchGone(t, client, "other")
	worker := owner{t: t, client: client, host: "worker-1.example.org"}
	deadlines := map[string]time.Time{}
	for _, name := range []string{"deploy/a/b", "manual/a", "patient", "other"} {
		deadlines[name] = worker.lock(name, 0)
	}
	require.Less(t, otherGone().Sub(deadlines["other"]), longer)
	require.GreaterOrEqual(t, patientGone().Sub(deadlines["patient"]), longer)
	d.awaitMetric(1, "unlocker_would_unlock_total")
	d.awaitMetric(2, "unlocker_locks", "state", "expired")
	require.EqualValues(t, 2, d.metric("unlocker_forced_unlocks_total"))
	require.Len(t, d.log.names(message.WouldRemove), 1)
	require.EqualValues(t, 8, keys(t, client, prefix))
}

func TestRateLimit(t *testing.T) {
	const n, rate = 13, 6
	cluster, client := newEtcd(t, localetcd.Options{})
	d := startDaemon(t, cluster.Endpoints(), func(c *config.Config) { c.Reaper.RateLimit, c.Reaper.BatchSize = rate, 1 })
	d.awaitReaping()
	due := time.Now().Add(time.Second)
	putLocks(t, client, n, due)
	awaitKeys(t, client, 0, prefix)
	require.Greater(t, time.Since(due), newConfig(nil).Reaper.Grace+(n-1)*time.Second/rate)
}

// So many locks at once are not that many deaths.
func TestS3_Storm(t *testing.T) {
	const n, hold = 10, 2 * time.Second
	cluster, client := newEtcd(t, localetcd.Options{})
	d := startDaemon(t, cluster.Endpoints(), func(c *config.Config) { c.Reaper.Storm.MinLocks, c.Reaper.Storm.Hold = n, hold })
	d.awaitReaping()
	deadline := time.Now().Add(2 * time.Second)
	putLocks(t, client, n, deadline)
	gone := watchGone(t, client, "many/00000")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "storm")
	require.EqualValues(t, n*7, keys(t, client, prefix))
	early := 100 * time.Millisecond // locks are taken up a little before they are due
	require.GreaterOrEqual(t, gone().Sub(deadline), newConfig(nil).Reaper.Grace+hold-early)
	awaitKeys(t, client, 0, prefix)
	d.awaitMetric(0, "unlocker_reaper_hold")
	d.awaitMetric(n, "unlocker_forced_unlocks_total")
}
