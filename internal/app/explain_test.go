package app_test

import (
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// clock is a time of day in an explanation.
const clock = `(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d`

// page returns all locks, by name.
func (d *daemon) page() map[string]api.Lock {
	d.t.Helper()
	var page api.LockPage
	require.Equal(d.t, http.StatusOK, d.getAPI("/api/v1/locks?limit=1000", &page))
	locks := make(map[string]api.Lock)
	for _, l := range page.Locks {
		locks[l.Name] = l
	}
	return locks
}

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// In a page and on its own, a lock is explained by the same verdict.
func TestS8_EveryLockIsExplained(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	past, later := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	locked := etcdtest.Stamp(past.Add(-2 * time.Minute))
	e.Put(e.Lock("found", past, past, "locked_at", locked)...)
	e.Put(e.Lock("off/expired", past, past)...)
	e.Put(clientv3.OpPut(prefix+"off/orphan/alert_at", etcdtest.Stamp(past)))
	e.Put(e.Lock("dry/expired", past, past, "locked_at", locked)...)
	e.Put(e.Lock("held", later, later)...)
	e.Put(e.Lock("overdue", past, later)...)
	e.Put(clientv3.OpPut(prefix+"undated/uuid", "u"))
	e.Put(e.Lock("malformed", past, past, "locked_at", "soon")...)
	e.Put(clientv3.OpPut(prefix+"stray/x", "y"))
	e.Put(clientv3.OpPut(prefix+"orphan/alert_at", etcdtest.Stamp(past)))
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Reaper.OrphanGrace = 500 * time.Millisecond
		c.Policies = []config.Policy{
			{Match: "off/*", Mode: "off", Grace: c.Reaper.Grace}, {Match: "dry/*", Mode: "dry-run", Grace: c.Reaper.Grace},
		}
	})
	d.awaitLeading()
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "orphan")
	const late = `learned late, patience 2m0s(; outages of etcd add \S+)?`
	waits := `waits until ` + clock + `: .* ` + late
	locks := d.page()
	require.Len(t, locks, 9)
	for name, want := range map[string]string{
		"found":       waits,
		"off/expired": `is not removed automatically: .*mode is off.*`,
		"off/orphan":  `is not removed automatically: .*mode is off.*`,
		"dry/expired": `would be removed .*dry-run.* ` + late,
		"held":        ``,
		"overdue":     `is removed at .*` + clock + ` unless its holder renews it: .*`,
		"undated":     `is never removed automatically: .*`,
		"malformed":   `is never removed automatically: locked_at is "soon": neither seconds since the epoch nor RFC 3339`,
		"stray":       `is never removed automatically: .*`,
	} {
		l, detail := locks[name], api.LockDetail{}
		require.Regexp(t, "^"+want+"$", l.Explanation, name)
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/"+name, &detail))
		require.NotEmpty(t, detail.Explanation)
		require.Regexp(t, want, detail.Explanation, name)
		require.Equal(t, detail.Verdict.Action == "leave", detail.Due.IsZero(), name)
		etcdtest.Eventually(t, func() bool { // an outage between the two adds to the second
			return d.page()[name].Due.Sub(detail.Due).Abs() < time.Second || d.getAPI("/api/v1/locks/"+name, &detail) != http.StatusOK
		}, name)
	}
}

// The log says it too, once.
func TestS8_ALockThatWaitsIsLogged(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	past := time.Now().Add(-time.Minute)
	e.Put(e.Lock("found", past, past, "locked_at", etcdtest.Stamp(past.Add(-2*time.Minute)))...)
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("held", later, later)...)
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Policies = []config.Policy{{Match: "off/*", Mode: "off", Grace: c.Reaper.Grace}}
	})
	d.awaitReaping()
	etcdtest.Eventually(t, func() bool { return len(d.log.Lines(api.LogWaiting)) > 0 })
	e.Put(e.Lock("off/second", past, past)...)
	etcdtest.Eventually(t, func() bool { return len(d.log.Lines(api.LogWaiting)) > 1 })
	lines := d.log.Lines(api.LogWaiting)
	require.Len(t, lines, 2)
	require.Equal(t, "found", lines[0]["lock"])
	require.Regexp(t, `^waits until `+clock+`: .* learned late, patience 2m0s`, lines[0]["explanation"])
	require.Equal(t, "off/second", lines[1]["lock"], "what was logged before is not repeated")
	require.EqualValues(t, 2, lines[1]["locks"])
}

// A lock that is due, while a hold is in force.
func TestS8_HoldsAreExplained(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.Reaper.Settle = time.Hour })
	d.awaitReady()
	e.Put(e.Lock("due", time.Now(), time.Now())...)
	d.awaitMetric(1, "unlocker_reaper_backlog")
	etcdtest.Eventually(t, func() bool { return d.page()["due"].Due.Before(time.Now()) })
	require.Regexp(t, `^is due; removals on hold since `+clock+`: settling until \S+ after the first listing`, d.page()["due"].Explanation)
}

func TestS8_OverdueProbeIsExplained(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	d := startDaemon(t, []string{proxy.Addr()}, func(c *config.Config) {
		c.Reaper.Freshness, c.Etcd.RequestTimeout = time.Minute, time.Minute
	})
	e.Put(e.Lock("overdue", time.Now(), time.Now().Add(time.Hour))...)
	d.awaitMetric(1, "unlocker_locks", "state", "overdue")
	d.awaitReaping()
	proxy.Blackhole()
	defer func() { require.NoError(t, proxy.Heal()) }()
	const want = `; removals on hold since ` + clock + `: etcd answered no probe that began after ` + clock + `; it waits longer while that lasts$`
	etcdtest.Eventually(t, func() bool { return matches(want, d.page()["overdue"].Explanation) })
	require.EqualValues(t, 1, d.metric("unlocker_reaper_hold", "reason", "disconnected"))
}

func TestS8_StandbySaysThatItWaitsForTheLeader(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	leader := startDaemon(t, e.Endpoints())
	leader.awaitMetric(1, "unlocker_leader")
	standby := startDaemon(t, e.Endpoints())
	standby.awaitReaping()
	e.Put(e.Lock("overdue", time.Now(), time.Now().Add(time.Hour))...)
	for _, d := range []*daemon{leader, standby} {
		d.awaitMetric(1, "unlocker_locks", "state", "overdue")
	}
	etcdtest.Eventually(t, func() bool { // a busy machine has a hold now and then, which it says as well
		return matches("; this replica acts "+standbyDelay.String()+" after the leader$", standby.page()["overdue"].Explanation)
	})
	require.NotContains(t, leader.page()["overdue"].Explanation, "replica")
}

// A lock whose removal takes long: here, each waits for the one before.
func TestS8_LockThatIsDueForLong(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Reaper.RateLimit, c.Reaper.BatchSize = 0.001, 1
		c.Etcd.RequestTimeout = etcdtest.Soon // a removal that fails has used the rate, too
	})
	d.awaitReaping()
	putLocks(e, 2, time.Now())
	d.awaitMetric(1, "unlocker_forced_unlocks_total")
	etcdtest.Eventually(t, func() bool {
		for _, l := range d.page() {
			return matches(`^is due since `+clock+` and not removed yet: others are removed first, or its removal fails \(see the log and unlocker_forced_unlock_failures_total\)$`, l.Explanation)
		}
		return false
	})
}
