package reaper

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// flagged are fair signals but for a probe that is overdue at will.
func flagged(overdue *atomic.Bool) func() Signals {
	return func() Signals {
		s := fair()
		s.Overdue = overdue.Load()
		return s
	}
}

// The probe becomes overdue right after the verdict, by which the gate was open.
func TestS3_NothingIsSentWhileAProbeIsOverdue(t *testing.T) {
	var overdue, flip atomic.Bool
	flip.Store(true)
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Signals = flagged(&overdue)
		o.Leader = func() bool { overdue.Store(flip.Load()); return true }
	})
	h.expired("a", "b")
	h.remove("a", "b")
	require.Len(t, h.logs.with(t, msgRemoving, ""), 2, "the verdicts were made")
	require.Empty(t, h.kv.sent())
	require.Len(t, h.logs.with(t, msgWithdrawn, ""), 2)
	require.Len(t, h.keys(), 10)
	require.Empty(t, h.tally.open)
	require.Empty(t, h.failures())
	back := []postponement{{"a", h.candidate("a").Token, 0}, {"b", h.candidate("b").Token, 0}}
	require.Equal(t, back, h.source.postponed())

	flip.Store(false) // still shut: not even a verdict is made
	h.remove("a", "b")
	require.Empty(t, h.kv.sent())
	require.Len(t, h.logs.with(t, msgRemoving, ""), 2)
	require.Equal(t, append(back, back...), h.source.postponed())

	overdue.Store(false)
	h.remove("a", "b")
	require.Equal(t, 2, h.removed())
}

// The first of two transactions takes long: what happens meanwhile stops the
// second.
func TestS3_EachTransactionLooksAgain(t *testing.T) {
	var overdue, led atomic.Bool
	var credit atomic.Int64
	for name, c := range map[string]struct{ happens func() }{
		"overdue":     {func() { overdue.Store(true) }},
		"outage over": {func() { credit.Store(int64(ages)) }},
		"deposed":     {func() { led.Store(false) }},
	} {
		t.Run(name, func(t *testing.T) {
			overdue.Store(false)
			led.Store(true)
			credit.Store(0)
			h := newHouse(t, sharedClient(t), func(o *Options) {
				o.BatchSize, o.Signals, o.Leader, o.Rules.StandbyDelay = 64, flagged(&overdue), led.Load, ages
				o.Credit = func(time.Time) time.Duration { return time.Duration(credit.Load()) }
			})
			all := names("n%03d", 20)
			h.expired(all...)
			h.crowd("n003/x%03d", 115)
			h.put("n003", map[string]string{"note": "so that all gaps are looked for"})
			h.kv.before = c.happens
			h.remove(all...)
			require.Len(t, h.kv.sent(), 1)
			require.Equal(t, 10, h.removed())
			require.Len(t, h.logs.with(t, msgWithdrawn, ""), 10)
			require.Len(t, h.source.postponed(), 10)
		})
	}
}

func TestS3_TimeWithoutEtcdDoesNotCount(t *testing.T) {
	var credit atomic.Int64
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Credit = func(time.Time) time.Duration { return time.Duration(credit.Load()) }
	})
	h.expired("a")
	late := time.Since(past.Time().Add(2 * time.Second))
	credit.Store(int64(late + time.Hour))
	h.remove("a")
	require.Empty(t, h.kv.sent())
	require.InDelta(t, time.Hour, h.source.postponed()[0].delay, float64(time.Minute))
	credit.Store(int64(late - time.Hour))
	h.remove("a")
	require.Equal(t, 1, h.removed())
}

// A dry run is a hold that lets verdicts be made; with any other it does not.
func TestS3_DryRunLeavesTheGateOpenForVerdicts(t *testing.T) {
	var overdue, alarm atomic.Bool
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Rules.Mode, o.Holds.DryRun = DryRun, true
		o.Signals = func() Signals {
			s := flagged(&overdue)()
			if alarm.Load() {
				s.Alarms = []string{"NOSPACE"}
			}
			return s
		}
		o.Rules.Policies = []Policy{{Match: "**", Mode: Enforce, Grace: 2 * time.Second}}
	})
	h.expired("a")
	h.remove("a")
	require.Empty(t, h.kv.sent())
	require.EqualValues(t, 1, h.Stats().Would)
	require.Len(t, h.Holding(), 1)
	require.Contains(t, h.Holding(), HoldDryRun)
	overdue.Store(true)
	h.remove("a")
	require.EqualValues(t, 1, h.Stats().Would)
	overdue.Store(false)
	alarm.Store(true)
	h.remove("a")
	require.EqualValues(t, 1, h.Stats().Would)
}

// bubble runs a reaper whose source has candidates and whose etcd must not be
// asked, with time that passes only where everybody waits.
func bubble(t *testing.T, o Options, f func(r *Reaper, s *fakeSource, l *logs)) {
	synctest.Test(t, func(t *testing.T) {
		layout, err := lock.NewLayout("/p/")
		require.NoError(t, err)
		source, l := newFakeSource(), &logs{}
		source.again = true
		o.KV, o.Layout, o.Source, o.Delay, o.Logger = &spyKV{}, layout, source, &delays{}, slog.New(slog.NewJSONHandler(l, nil))
		o.Leader, o.Credit = func() bool { return true }, func(time.Time) time.Duration { return 0 }
		o.Rules.Mode, o.BatchSize, o.Concurrency, o.RequestTimeout = Enforce, 4, 3, time.Second
		r, err := New(o)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		f(r, source, l)
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestS3_AShutGateIsNoHotLoop(t *testing.T) {
	var looks atomic.Int64
	o := Options{Holds: calm, Signals: func() Signals {
		looks.Add(1)
		s := fair()
		s.Connected = false
		return s
	}}
	bubble(t, o, func(_ *Reaper, s *fakeSource, _ *logs) {
		for _, name := range names("n%d", 100) {
			s.fed <- []Candidate{{Lock: lock.Lock{Name: name, Token: 1}, Sight: longSeen, At: time.Now()}}
		}
		<-time.After(time.Minute)
		require.Empty(t, s.postponed(), "they stay where they are")
		require.LessOrEqual(t, looks.Load(), int64(4*(time.Minute/lookEvery+2)))
		require.Greater(t, looks.Load(), int64(time.Minute/lookEvery), "holds are kept up to date")
	})
}

func TestS3_AHoldIsLoggedOnceWhenItBeginsAndOnceWhenItEnds(t *testing.T) {
	var broken atomic.Bool
	o := Options{Holds: HoldRules{Settle: 15 * time.Second, Freshness: time.Minute}, Signals: func() Signals {
		s := fair()
		s.Probed = !broken.Load()
		return s
	}}
	bubble(t, o, func(r *Reaper, _ *fakeSource, l *logs) {
		<-time.After(time.Minute)
		require.Empty(t, r.Holding())
		began := time.Now()
		broken.Store(true)
		<-time.After(time.Minute)
		require.Equal(t, "the probe fails", r.Holding()[HoldDisconnected].Reason)
		require.WithinDuration(t, began, r.Holding()[HoldDisconnected].Since, 2*lookEvery)
		broken.Store(false)
		<-time.After(time.Second)
		require.Contains(t, r.Holding()[HoldDisconnected].Reason, "settling")
		require.Empty(t, l.with(t, msgEnds, ""))
		<-time.After(time.Minute)
		require.Empty(t, r.Holding())
		begins, ends := l.with(t, msgBegins, ""), l.with(t, msgEnds, "")
		require.Len(t, begins, 1)
		require.Equal(t, "disconnected", begins[0]["hold"])
		require.Equal(t, "the probe fails", begins[0]["reason"])
		require.Len(t, ends, 1)
		require.Equal(t, "disconnected", ends[0]["hold"])
		require.InDelta(t, 75*time.Second, ends[0]["lasted"], float64(time.Second))
	})
}

// The pressure that comes with the candidates shuts the gate before any of them
// is read; they go back, and are removed when the storm is over.
func TestS3_WorkersPutBackWhatTheyHoldAndRemoveItLater(t *testing.T) {
	const storm = 300 * time.Millisecond
	h := newHouse(t, sharedClient(t), func(o *Options) {
		o.Concurrency = 2
		o.Holds.Storm = StormRules{MinLocks: 3, Fraction: 0.5, Hold: storm}
	})
	h.source.again, h.source.pressure = true, Pressure{CameDue: 3, Dated: 4, Backlog: 3}
	h.expired("a", "b", "c")
	var first atomic.Pointer[time.Time]
	h.kv.beforeRead = func(int) { now := time.Now(); first.CompareAndSwap(nil, &now) }
	h.source.fed <- h.candidates("a", "b", "c")
	start := time.Now()
	run(t, h, func() {
		require.Eventually(t, func() bool { return h.removed() == 3 }, 10*time.Second, time.Millisecond)
	})
	require.GreaterOrEqual(t, first.Load().Sub(start), storm, "read before the gate was open")
	require.Len(t, h.logs.with(t, msgBegins, ""), 1)
	require.Len(t, h.logs.with(t, msgEnds, ""), 1)
	require.Len(t, h.source.postponed(), 3)
	for _, p := range h.source.postponed() {
		require.Zero(t, p.delay)
	}
}

// run runs a house's reaper while f runs.
func run(t *testing.T, h *house, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	f()
}
