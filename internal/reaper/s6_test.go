package reaper_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/reaper"
)

func TestS6_TheLeaderActsAtDueAndAStandbyLater(t *testing.T) {
	const standby = time.Second
	for name, c := range map[string]struct {
		leader bool
		after  time.Duration
	}{"leader": {true, 0}, "standby": {false, standby}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) {
					o.Leader, o.Rules.StandbyDelay = func() bool { return c.leader }, standby
				})
				h.source.again = true
				due := time.Now().Add(300 * time.Millisecond)
				var sent time.Time
				h.before = func(context.Context) { sent = time.Now() }
				h.give(h.dated("a", due.Add(-grace)))
				h.await(func() bool { return h.removed() == 1 })
				require.Equal(t, c.after, sent.Sub(due))
				require.Equal(t, due.UTC(), h.Ledger().Recent(1)[0].Verdict.Due, "the delay of a standby is not the lock's")
			})
		})
	}
}

// A replica that is elected in the meantime does not wait any longer.
func TestS6_AStandbyThatIsElectedActsSoon(t *testing.T) {
	for name, c := range map[string]struct{ dueIn, electedIn, removedIn, within time.Duration }{
		"before it is due":        {3 * time.Second, 2 * time.Second, 3 * time.Second, 0},
		"after the leader failed": {3 * time.Second, 7 * time.Second, 7 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				start := time.Now()
				leads := func() bool { return time.Since(start) >= c.electedIn }
				h := newHarness(t, nil, func(o *reaper.Options) { o.Leader, o.Rules.StandbyDelay = leads, ages })
				h.source.again = true
				var sent time.Time
				h.before = func(context.Context) { sent = time.Now() }
				h.give(h.dated("a", start.Add(c.dueIn-grace)))
				h.await(func() bool { return h.removed() == 1 })
				require.GreaterOrEqual(t, sent.Sub(start), c.removedIn)
				require.LessOrEqual(t, sent.Sub(start), c.removedIn+c.within)
			})
		})
	}
}

func TestS6_TheRateIsKept(t *testing.T) {
	const n, batch = 40, 4
	for name, c := range map[string]struct {
		perSecond float64
		want      time.Duration
	}{
		"limited": {40, (n - batch) * time.Second / 40}, "no limit": {0, 0},
		"less than a batch in a second": {2.5, (n - 2) * time.Second * 2 / 5},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) {
					o.Rules.RateLimit, o.Rules.BatchSize, o.Rules.Concurrency = c.perSecond, batch, 3
				})
				h.expired(names("n%02d", n)...)
				due, start := h.dues(names("n%02d", n)...), time.Now()
				h.give(due...)
				h.await(func() bool { return h.removed() == n })
				require.InDelta(t, c.want, time.Since(start), float64(5*time.Millisecond))
				require.Empty(t, h.source.postponed())
			})
		})
	}
}

func TestRunEndsWhileWaitingForTheRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rules.RateLimit, o.Rules.BatchSize = 0.001, 1 })
		h.expired("a", "b")
		h.give(h.dues("a", "b")...)
		h.await(func() bool { return h.removed() == 1 })
		ending := time.Now()
		h.stop()
		require.Zero(t, time.Since(ending))
		require.Equal(t, 1, h.removed())
	})
}

// The lead became shorter after the table had computed when to return a lock: its probe then begins the lead before
// due all the same, so that its answer is there at due.
func TestS6_ALockThatComesTooEarlyComesAgainInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.handle(h.dated("a", time.Now().Add(lead+2*time.Millisecond-grace)))
		require.Equal(t, 2*time.Millisecond, h.putBack())
	})
}
