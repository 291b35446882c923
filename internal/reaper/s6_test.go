package reaper_test

import (
	"context"
	"sync/atomic"
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

// A replica that takes over in the meantime does not wait any longer.
func TestS6_AStandbyThatIsElectedActsAtOnce(t *testing.T) {
	var leader atomic.Bool
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Leader, o.Rules.StandbyDelay = leader.Load, ages })
	h.expired("a")
	h.remove("a")
	require.Zero(t, h.sent.Load())
	leader.Store(true)
	h.remove("a")
	require.Equal(t, 1, h.removed())
}

func TestS6_TheRateIsKept(t *testing.T) {
	const n, batch = 40, 4
	for name, c := range map[string]struct {
		perSecond float64
		want      time.Duration
	}{"limited": {40, (n - batch) * time.Second / 40}, "no limit": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHarness(t, nil, func(o *reaper.Options) { o.Rate, o.BatchSize, o.Concurrency = c.perSecond, batch, 3 })
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
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rate, o.BatchSize = 0.001, 1 })
		h.expired("a", "b")
		h.give(h.dues("a", "b")...)
		h.await(func() bool { return h.removed() == 1 })
		ending := time.Now()
		h.stop()
		require.Zero(t, time.Since(ending))
		require.Equal(t, 1, h.removed())
	})
}
