package app_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// holder acquires and renews locks by its own clock.
type holder struct {
	*etcdtest.Etcd
	t    *testing.T
	host string
	// slow is how far its clock is behind that of the test.
	slow time.Duration
}

// now is truncated to milliseconds, as stamps are.
func (h holder) now() time.Time { return time.Now().Add(-h.slow).Truncate(time.Millisecond) }

// lock acquires a lock, and returns its deadline by the clock of the test.
func (h holder) lock(name string, ttl time.Duration) time.Time {
	h.t.Helper()
	now := h.now()
	h.Set(name, "uuid", "u-"+name, "hostname", h.host, "locked_at", etcdtest.Stamp(now), "auto_unlock_at", etcdtest.Stamp(now.Add(ttl)))
	return now.Add(h.slow + ttl)
}

// renewUntil renews the lock four times per ttl, and returns the last deadline by the clock
// of the test.
func (h holder) renewUntil(end time.Time, name string, ttl time.Duration) (deadline time.Time) {
	h.t.Helper()
	var next time.Time
	etcdtest.Eventually(h.t, func() bool {
		if now := h.now(); !now.Before(next) {
			h.Renew(name, now, now.Add(ttl))
			next, deadline = now.Add(ttl/4), now.Add(h.slow+ttl)
		}
		return time.Now().After(end)
	})
	return deadline
}

// By the clock of the daemon the deadlines of the holder are always past.
func TestS2_SlowHolderIsNotRemovedEarly(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	slow := holder{e, t, "slow.example.org", 30 * time.Second}
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
		t.Logf("%s: removed %s after the clock of its holder had passed the deadline", name, c.gone.Sub(c.deadline))
	}
}

// Nothing is known about the clocks of holders whose locks were acquired before the daemon
// started.
func TestS2_FoundByListingGetsPatience(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	slow := holder{e, t, "slow.example.org", time.Minute}
	slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	holder{e, t, "dead.example.org", time.Hour}.lock("ancient", ttl)
	silentGone, ancientGone := watchGone(t, e, "silent"), watchGone(t, e, "ancient")

	start := time.Now()
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	slow.renewUntil(time.Now().Add(2*ttl), "alive", ttl)
	c := newConfig(nil).Reaper
	ancient, silent := ancientGone().Sub(start), silentGone().Sub(start)
	t.Logf("removed %s and %s after the start", ancient, silent)
	for _, gone := range []time.Duration{ancient, silent} {
		require.Greater(t, gone, ttl+c.Grace, "nothing hastens")
		require.Less(t, gone, ttl+c.Grace+late)
	}
}
