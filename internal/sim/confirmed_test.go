package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// secondOutage is of a holder that tries again every 14.63 s, less than settle and its patience, and of an outage that
// begins when the holds of another one end.
func secondOutage(lasts float64) history {
	h := holder{Name: "a", Start: s(20), Interval: s(6), TTL: s(18), Retry: s(14.63), LockedAt: true, AliveAt: true}
	return history{Replicas: 1, Lasts: s(200), Holders: []holder{h}, Faults: []fault{
		{Kind: slowDisk, At: s(55), For: s(45)}, {Kind: refused, Who: hosts, At: s(55), For: s(45)},
		{Kind: slowDisk, At: s(115.5), For: s(lasts)}, {Kind: refused, Who: hosts, At: s(114.5), For: s(lasts + 1)},
	}}
}

// A removal is not sent into an outage that no probe has shown yet: it would be carried out at its end.
func TestS3_NoRemovalIsOnItsWayInAnOutage(t *testing.T) {
	for _, lasts := range []float64{4, 8} {
		early := run(t, secondOutage(lasts), without{confirmed: true, signals: neverOverdue}).gone("a")
		require.Equal(t, s(115.5+lasts), early, "without the rule")
		// Renewed at 50 s; both outages count, and the grace.
		if at := run(t, secondOutage(lasts), without{}).gone("a"); at != 0 {
			require.Greater(t, at, s(50+18+2+45+lasts))
		}
	}
}

// etcd refuses puts from shortly before due on, and the next probe of the interval shows it after. The
// holder's clock is slow within the tolerance, so that it tries 0.1 s before its own deadline.
func TestS3_AnAlarmJustBeforeDue(t *testing.T) {
	h := holder{Name: "a", Start: s(20.5), Interval: s(41.8), TTL: s(41.9), Retry: s(5), LockedAt: true, AliveAt: true, Clock: clock{Offset: -s(1.9)}}
	for _, at := range []float64{62.05, 62.15, 62.25} {
		full := history{Replicas: 1, Lasts: s(120), Holders: []holder{h}, Faults: []fault{{Kind: noSpace, At: s(at), For: s(8)}}}
		require.NotZero(t, run(t, full, without{confirmed: true}).gone("a"), "without the rule")
		require.Zero(t, run(t, full, without{}).gone("a"))
	}
}

// A pause is acknowledged while a removal is on its way to etcd.
func TestS3_NoRemovalAfterAPauseWasAcknowledged(t *testing.T) {
	dead := lease("a", 20, 30).dies(32)
	due := 62 + drift(30)
	for name, h := range map[string][]fault{
		"slow network": {{Kind: latency, Who: replicas, At: s(due - 0.005), For: s(0.05), By: s(4.9)}, {Kind: paused, At: s(62.2), For: s(30)}},
		"login":        {{Kind: tokens, At: s(due - 0.005)}, {Kind: latency, Who: replicas, At: s(due - 0.004), For: s(10), By: s(1.5)}, {Kind: paused, At: s(62.2), For: s(30)}},
	} {
		t.Run(name, func(t *testing.T) {
			at := run(t, history{Replicas: 1, Lasts: s(110), Holders: []holder{dead}, Faults: h}, without{}).gone("a")
			require.Greater(t, at, s(92), "while it was paused")
		})
	}
}

// A removal waits for the rate limit while etcd is restored, listed again, and settle passes.
func TestS3_AVerdictOfAnotherHistoryIsNotCarriedOut(t *testing.T) {
	slowly := without{config: func(c *config.Config) { c.Reaper.RateLimit, c.Reaper.BatchSize = 0.04, 1 }}
	cutOff := holder{Name: "a", Host: 1, Start: s(21.5), Interval: s(10), TTL: s(30), Retry: s(5), LockedAt: true, AliveAt: true}
	j := run(t, history{Replicas: 1, Lasts: s(200), Holders: []holder{lease("first", 20, 30).dies(29), cutOff}, Faults: []fault{
		{Kind: refused, Who: hosts, N: 2, At: s(30), For: s(55)}, {Kind: newCluster, At: s(60), By: s(5)}}}, slowly)
	require.Equal(t, s(52+drift(30)), j.gone("first"))
	require.Zero(t, j.gone("a"), "learned of again at 61 s, with a patience of 30 s")
}

// etcd carries a removal out, and its answer is lost with the watch: it is counted once both are back.
func TestS7_ARemovalWhoseAnswerIsLostIsPresumed(t *testing.T) {
	dead := lease("a", 20, 30).dies(32) // due at 62 s
	h := history{Replicas: 1, Lasts: s(110), Holders: []holder{dead}, Faults: []fault{
		{Kind: latency, Who: replicas, At: s(61.9), For: s(0.2), By: s(0.05)}, {Kind: unanswered, Who: replicas, At: s(62.06), For: s(8)},
	}}
	j := judged(t, h)
	require.InDelta(t, 62.1, j.gone("a").Seconds(), 0.1)

	require.EqualValues(t, 1, j.w.daemons[0].reaper.Stats().Removed[verdict.Presumed])
}

// A lock is read, and etcd restored with a nested one that was released since: the lock as it was read says where the
// others are not.
func TestS4_ARestoreBetweenTheReadAndTheRemoval(t *testing.T) {
	nested := lease("a/b", 18, 60)
	nested.Releases = s(24)
	for _, k := range []kind{rolledBack, newCluster, bumped} {
		t.Run(string(k), func(t *testing.T) {
			j := judged(t, history{Replicas: 1, Lasts: s(200), Holders: []holder{{Name: "a", Start: s(20), TTL: s(20), LockedAt: true}, nested},
				Faults: []fault{{Kind: k, On: atRead, After: true, At: s(22), Waits: s(0.06)}}})
			require.NotZero(t, j.gone("a"), "once it was read again")
		})
	}
}
