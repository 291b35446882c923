package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// owner takes and renews locks by a clock of its own.
type owner struct {
	*etcdtest.Etcd
	t    *testing.T
	host string
	// behind is how far its clock is.
	behind time.Duration
}

// now is in milliseconds, as a stamp is.
func (o owner) now() time.Time { return time.Now().Add(-o.behind).Truncate(time.Millisecond) }

// lock takes a lock for a while, and returns its deadline by our clock.
func (o owner) lock(name string, ttl time.Duration) time.Time {
	o.t.Helper()
	now := o.now()
	o.Set(name, "uuid", "u-"+name, "hostname", o.host, "locked_at", etcdtest.Stamp(now), "auto_unlock_at", etcdtest.Stamp(now.Add(ttl)))
	return now.Add(o.behind + ttl)
}

// renewUntil renews again and again, and returns the last deadline by our clock.
func (o owner) renewUntil(end time.Time, name string, ttl time.Duration) (deadline time.Time) {
	o.t.Helper()
	var next time.Time
	etcdtest.Eventually(o.t, func() bool {
		if now := o.now(); !now.Before(next) {
			o.Renew(name, now, now.Add(ttl))
			next, deadline = now.Add(ttl/4), now.Add(o.behind+ttl)
		}
		return time.Now().After(end)
	})
	return deadline
}

// By our clock its deadlines are past from the start.
func TestS2_SlowOwnerIsNotRemovedEarly(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	slow := owner{e, t, "slow.example.org", 30 * time.Second}
	silentGone, aliveGone := watchGone(t, e, "silent"), watchGone(t, e, "alive")
	silent := slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "expired")
	offset := d.metric("unlocker_host_clock_offset_seconds", "hostname", "slow.example.org")
	require.InDelta(t, -30, offset, 1)
	alive := slow.renewUntil(time.Now().Add(2*ttl), "alive", ttl)

	grace := newConfig(nil).Reaper.Grace
	for name, c := range map[string]struct{ deadline, gone time.Time }{
		"silent": {silent, silentGone()}, "alive": {alive, aliveGone()},
	} {
		require.True(t, c.gone.After(c.deadline.Add(grace)), "%s: %s", name, c.gone.Sub(c.deadline))
		require.True(t, c.gone.Before(c.deadline.Add(grace+late)), "%s: %s", name, c.gone.Sub(c.deadline))
		t.Logf("%s: gone %s after its owner's clock had passed the deadline", name, c.gone.Sub(c.deadline))
	}
}

// Of what was there before us nothing is known but that it is there now.
func TestS2_FoundByListingGetsPatience(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	slow := owner{e, t, "slow.example.org", time.Minute}
	slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	owner{e, t, "dead.example.org", time.Hour}.lock("ancient", ttl)
	silentGone, ancientGone := watchGone(t, e, "silent"), watchGone(t, e, "ancient")

	start := time.Now()
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	slow.renewUntil(time.Now().Add(2*ttl), "alive", ttl)
	c := newConfig(nil).Reaper
	ancient, silent := ancientGone().Sub(start), silentGone().Sub(start)
	t.Logf("gone %s and %s after the start", ancient, silent)
	for _, gone := range []time.Duration{ancient, silent} {
		require.Greater(t, gone, ttl+c.Grace, "nothing hastens")
		require.Less(t, gone, ttl+c.Grace+late)
	}
}
