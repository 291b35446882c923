package reaper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const updateInterval = reaper.UpdateInterval

// flagged are signals of a probe that is overdue at will.
func flagged(overdue *atomic.Bool) func() verdict.Signals {
	return func() verdict.Signals {
		s := well()
		s.Overdue = overdue.Load()
		return s
	}
}

func TestS3_NothingIsSentWhileAProbeIsOverdue(t *testing.T) {
	var h *harness
	var overdue, after atomic.Bool
	h = newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Signals = func() verdict.Signals {
			s := well() // overdue at will, or right after the verdicts
			s.Overdue = overdue.Load() || after.Load() && len(h.log.with(t, api.LogRemoving, "")) > 0
			return s
		}
	})
	h.expired("a", "b")
	due := h.dues("a", "b")
	after.Store(true)
	h.handle(due...)
	require.Len(t, h.log.with(t, api.LogRemoving, ""), 2, "the verdicts were made")
	require.Len(t, h.log.with(t, api.LogWithdrawn, ""), 2)
	require.Len(t, h.keys(), 10)
	require.Empty(t, h.failures())
	back := []postponement{{"a", due[0].Token, 0}, {"b", due[1].Token, 0}}
	require.Equal(t, back, h.source.postponed())

	after.Store(false)
	h.await(func() bool { return h.source.waits.Load() })
	overdue.Store(true) // while the worker waits for locks: it does not even take them
	h.give(due...)
	h.await(func() bool { return len(h.source.signal) == 0 })
	require.Len(t, h.source.due, 1)
	require.EqualValues(t, 1, h.reads.Load())
	require.Zero(t, h.sent.Load())
	require.Len(t, h.log.with(t, api.LogRemoving, ""), 2)
	require.Equal(t, back, h.source.postponed())

	overdue.Store(false)
	h.handle()
	require.Equal(t, 2, h.removed())
}

// The first of two transactions takes long: what happens meanwhile stops the second.
func TestS3_EachTransactionLooksAgain(t *testing.T) {
	var overdue, leader atomic.Bool
	var allowance atomic.Int64
	for name, happens := range map[string]func(){
		"overdue":     func() { overdue.Store(true) },
		"outage over": func() { allowance.Store(int64(ages)) },
		"deposed":     func() { leader.Store(false) },
	} {
		t.Run(name, func(t *testing.T) {
			overdue.Store(false)
			leader.Store(true)
			allowance.Store(0)
			h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
				o.Rules.BatchSize, o.Signals, o.Leader, o.Rules.StandbyDelay = unfit, flagged(&overdue), leader.Load, ages
				o.Probe = allowing(&allowance)
			})
			all := names("n%03d", unfit)
			h.expired(all...)
			h.before = func(context.Context) { happens() }
			h.remove(all...)
			require.EqualValues(t, 1, h.sent.Load())
			require.Equal(t, unfit/2, h.removed())
			require.Len(t, h.log.with(t, api.LogWithdrawn, ""), unfit/2)
			require.Len(t, h.source.postponed(), unfit/2)
		})
	}
}

func TestS3_TimeWithoutEtcdDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var allowance atomic.Int64
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Probe = allowing(&allowance)
		})
		h.expired("a")
		late := time.Since(past.Add(grace))
		allowance.Store(int64(late + time.Hour))
		h.handle(h.due("a"))
		require.Zero(t, h.sent.Load())
		require.Equal(t, time.Second-lead, h.putBack(), "the table computes due again")
		allowance.Store(int64(late - time.Hour))
		h.handle(h.due("a"))
		require.Equal(t, 1, h.removed())
	})
}

// A dry run is a hold that lets verdicts be made; with any other it does not.
func TestS3_DryRunLeavesTheGateOpenForVerdicts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var overdue, alarm atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Mode = verdict.DryRun
			o.Signals = func() verdict.Signals {
				s := flagged(&overdue)()
				if alarm.Load() {
					s.Alarms = []string{"NOSPACE"}
				}
				return s
			}
			o.Rules.Policies = []verdict.Policy{{Match: "**", Mode: verdict.Enforce, Grace: grace}}
		})
		h.expired("a")
		h.remove("a")
		require.Zero(t, h.sent.Load())
		require.EqualValues(t, 1, h.Stats().Would)
		require.Len(t, h.Holding(), 1)
		require.Contains(t, h.holding(), verdict.HoldDryRun)
		overdue.Store(true)
		h.give(h.due("a"))
		<-time.After(time.Minute)
		require.EqualValues(t, 1, h.Stats().Would)
		alarm.Store(true)
		overdue.Store(false)
		<-time.After(time.Minute)
		require.EqualValues(t, 1, h.Stats().Would)
		require.Len(t, h.Holding(), 2)
	})
}

func TestS3_AShutGateIsNoHotLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var reads atomic.Int64
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.BatchSize, o.Rules.Concurrency = 4, 3
			o.Signals = func() verdict.Signals {
				reads.Add(1)
				s := well()
				s.Connected = false
				return s
			}
		})
		for _, name := range names("n%d", 100) {
			h.give(table.View{Lock: protocol.Lock{Name: name, Token: 1}, At: time.Now()})
		}
		<-time.After(time.Minute)
		require.Empty(t, h.source.postponed(), "they stay where they are")
		require.LessOrEqual(t, reads.Load(), int64(4*(time.Minute/updateInterval+2)))
		require.Greater(t, reads.Load(), int64(time.Minute/updateInterval), "holds are kept up to date")
	})
}

func TestS3_AHoldIsLoggedOnceWhenItBeginsAndOnceWhenItEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var broken atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Settle = 15 * time.Second
			o.Signals = func() verdict.Signals {
				s := well()
				s.Probed = !broken.Load()
				return s
			}
		})
		h.start()
		<-time.After(time.Minute)
		require.Empty(t, h.Holding())
		began := time.Now()
		broken.Store(true)
		<-time.After(time.Minute)
		require.Equal(t, "the probe fails", h.holding()[verdict.HoldDisconnected].Reason)
		require.WithinDuration(t, began, h.holding()[verdict.HoldDisconnected].Since, 2*updateInterval)
		broken.Store(false)
		<-time.After(time.Second)
		require.Contains(t, h.holding()[verdict.HoldDisconnected].Reason, "settling")
		require.Empty(t, h.log.with(t, api.LogHoldEnds, ""))
		<-time.After(time.Minute)
		require.Empty(t, h.Holding())
		begins, ends := h.log.one(t, api.LogHoldBegins, ""), h.log.one(t, api.LogHoldEnds, "")
		require.Equal(t, "disconnected", begins.Hold)
		require.Equal(t, "the probe fails", begins.Reason)
		require.Equal(t, "disconnected", ends.Hold)
		require.InDelta(t, 75*time.Second, ends.Lasted, float64(2*updateInterval))
	})
}

// A hold that begins while the worker waits for locks closes the gate before any of them is
// taken; they stay where they are, and are removed when it is over.
func TestS3_NothingIsTakenWhileAHoldIsInForce(t *testing.T) {
	const alarmed = time.Minute
	bubble(t, func(t *testing.T) {
		var alarm atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Settle = time.Second
			o.Signals = func() verdict.Signals {
				s := well()
				if alarm.Load() {
					s.Alarms = []string{"NOSPACE"}
				}
				return s
			}
		})
		h.source.again = true
		h.expired("a", "b", "c")
		var firstRead time.Time
		h.beforeRead = func() {
			if firstRead.IsZero() {
				firstRead = time.Now()
			}
		}
		h.start()
		h.await(func() bool { return h.source.waits.Load() })
		start := time.Now()
		alarm.Store(true)
		h.give(h.dues("a", "b", "c")...)
		<-time.After(alarmed)
		require.Len(t, h.source.due, 1)
		alarm.Store(false)
		<-time.After(2 * time.Second)
		require.Equal(t, 3, h.removed())
		require.GreaterOrEqual(t, firstRead.Sub(start), alarmed+time.Second-updateInterval, "read before the gate was open")
		require.Len(t, h.log.with(t, api.LogHoldBegins, ""), 1)
		require.Len(t, h.log.with(t, api.LogHoldEnds, ""), 1)
		require.Empty(t, h.source.postponed())
	})
}
