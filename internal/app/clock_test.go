package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
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

// lock acquires a lock, and returns its deadline according to the clock of the test.
func (h holder) lock(name string, ttl time.Duration) time.Time {
	h.t.Helper()
	now := h.now()
	h.Set(name, "uuid", "u-"+name, "hostname", h.host, "locked_at", etcdtest.Stamp(now), "auto_unlock_at", etcdtest.Stamp(now.Add(ttl)))
	return now.Add(h.slow + ttl)
}

// renewOnce renews the lock. It is overdue at the time returned, according to the clock of the test, if it is not
// renewed again. It writes again if that took so long that the daemon would take the delay
// for a clock that is off.
func (h holder) renewOnce(name string, patience, ttl time.Duration) (alertAt time.Time) {
	h.t.Helper()
	etcdtest.Eventually(h.t, func() bool {
		now := h.now()
		h.Set(name, "alert_at", etcdtest.Stamp(now.Add(patience)), "auto_unlock_at", etcdtest.Stamp(now.Add(ttl)), "alive_at", etcdtest.Stamp(now))
		alertAt = now.Add(h.slow + patience)
		return h.now().Sub(now) < time.Second
	})
	return alertAt
}

// renewUntil renews the lock four times per ttl, and returns the last deadline according to the
// clock of the test.
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
	const ttl = 8 * time.Second
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	slow := holder{e, t, "slow.example.org", 30 * time.Second}
	silentGone, aliveGone := watchGone(t, e, "silent"), watchGone(t, e, "alive")
	silent := slow.lock("silent", ttl)
	slow.lock("alive", ttl)
	d.awaitMetric(2, "unlocker_locks", "state", "held")
	etcdtest.Eventually(t, func() bool { // what is slow on its way makes the clock look slower
		slow.Renew("alive", slow.now(), slow.now().Add(ttl))
		offset := d.metric("unlocker_host_clock_offset_seconds", "hostname", "slow.example.org")
		return offset > -31 && offset < -29
	})
	alive := slow.renewUntil(time.Now().Add(ttl+ttl/2), "alive", ttl)

	grace := newConfig(nil).Reaper.Grace
	for name, c := range map[string]struct{ deadline, gone time.Time }{
		"silent": {silent, silentGone()}, "alive": {alive, aliveGone()},
	} {
		require.True(t, c.gone.After(c.deadline.Add(grace)), "%s: %s", name, c.gone.Sub(c.deadline))
		require.True(t, c.gone.Before(c.deadline.Add(grace+late)), "%s: %s", name, c.gone.Sub(c.deadline))
		t.Logf("%s: removed %s after the clock of its holder had passed the deadline", name, c.gone.Sub(c.deadline))
	}
}

// A holder whose clock is off and that renews in time is not overdue. Once it stops, metrics and
// API tell so when its own clock passes alert_at.
func TestALockIsOverdueByTheClockOfItsHolder(t *testing.T) {
	t.Parallel()
	const patience = 14 * time.Second
	for name, behind := range map[string]time.Duration{"slow": 30 * time.Second, "fast": -30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := etcdtest.Start(t, localetcd.Options{})
			d := startDaemon(t, e.Endpoints())
			d.awaitReaping()
			h := holder{e, t, name, behind}
			h.lock("a", time.Hour)
			var alertAt time.Time
			for range 3 {
				alertAt = h.renewOnce("a", patience, time.Hour)
				etcdtest.Eventually(t, func() bool {
					require.Zero(t, d.metric("unlocker_locks", "state", "overdue"))
					return time.Until(alertAt) < patience/2
				})
			}
			d.awaitMetric(1, "unlocker_locks", "state", "overdue")
			require.WithinDuration(t, alertAt, time.Now(), patience/2)
			require.InDelta(t, float64(alertAt.UnixMilli())/1000, d.metric("unlocker_lock_alert_timestamp_seconds", "lock", "a"), 2)
			require.InDelta(t, float64(alertAt.Add(time.Hour-patience).Unix()), d.metric("unlocker_lock_auto_unlock_timestamp_seconds", "lock", "a"), 2)
			l := d.page()["a"]
			require.Equal(t, "overdue", l.State)
			require.InDelta(t, -behind.Seconds(), l.ClockOffset, 2)
			require.WithinDuration(t, alertAt, l.Corrected(l.AlertAt), 2*time.Second)
			var one api.LockDetail
			require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/a", &one))
			require.Equal(t, "overdue", one.State)
			require.Regexp(t, `its holder's clock is (28|29|30|31)(\.\d+)?s `+name, one.Explanation)
		})
	}
}

// Nothing is known about the clocks of holders whose locks were acquired before the daemon
// started.
func TestS2_FoundByListingGetsPatience(t *testing.T) {
	t.Parallel()
	const ttl = 8 * time.Second
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

// What the page of a lock says of its holder and the history below it go by one clock.
func TestOneClockForALockAndItsHistory(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	h := holder{e, t, "worker-7", 95 * time.Second}
	h.lock("a", time.Hour)
	var lock api.LockDetail
	etcdtest.Eventually(t, func() bool { // until the daemon observes live
		h.renewOnce("a", time.Minute, time.Minute)
		return d.getAPI("/api/v1/locks/a", &lock) == http.StatusOK && lock.ClockOffset != 0
	})
	var found api.History
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/history?name=a", &found))
	p := found.Periods[0]
	require.InDelta(t, lock.ClockOffset, p.ClockOffset, 1)
	for said, corrected := range map[time.Time]time.Time{
		lock.Corrected(lock.LockedAt): p.Acquired.At, lock.Corrected(lock.AliveAt): p.AliveAt,
		lock.Corrected(lock.AutoUnlockAt): p.AutoUnlockAt, p.AliveAt: p.Renewals[0].At,
	} {
		require.WithinDuration(t, said, corrected, time.Second)
	}
	require.Regexp(t, `corrected: clock 1m3[3-7]s slow`, d.webPage("/locks/a"))
}
