package reaper

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// gate is closed while a hold that stops removals is in force, or while a probe is overdue.
type gate struct {
	signals func() verdict.Signals
	logger  *slog.Logger

	mu      sync.Mutex
	machine *verdict.Holds
	// opened is when it was first found open since it was last closed, or etcd was restored.
	opened time.Time
	// history is the number of the history of etcd.
	history int
	active  map[verdict.Hold]api.Hold
}

func newGate(rules verdict.Rules, signals func() verdict.Signals, logger *slog.Logger) *gate {
	return &gate{signals: signals, logger: logger, machine: verdict.NewHolds(rules), active: make(map[verdict.Hold]api.Hold)}
}

// open reads all signals and reports whether verdicts may be carried out now.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// Under the mutex: an older reading applied late would end a hold and start it again.
	// What fails after now is newer, and counts in the next reading. now keeps its monotonic
	// reading, which UTC would strip: a step of our wall clock must not end or begin a hold.
	now := time.Now()
	s := g.signals()
	restored := s.History != g.history
	g.history = s.History
	found := g.machine.Update(now, s)
	open := !s.Overdue
	for _, hold := range verdict.AllHolds() {
		reason, held := found[hold]
		was, before := g.active[hold]
		if !held && before {
			delete(g.active, hold)
			g.logger.Info(api.LogHoldEnds, "hold", string(hold), "lasted", now.Sub(was.Since))
		}
		if !held {
			continue
		}
		kind := hold.Kind()
		open = open && !kind.Stops
		if !before {
			was.Since = now
			g.logBegin(kind, reason, found)
		}
		g.active[hold] = api.Hold{Hold: hold, Since: was.Since, Reason: reason}
	}
	switch {
	case !open:
		g.opened = time.Time{}
	case restored, g.opened.IsZero():
		g.opened = now
	}
	return open
}

// seen returns the number of the history of etcd at the last reading of the signals.
func (g *gate) seen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.history
}

// since returns when the gate opened, or the zero time while it is closed.
func (g *gate) since() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

// logBegin logs as a warning what is bad, unless it is a part of every start: a failure to connect
// has its own warning.
func (g *gate) logBegin(kind verdict.Kind, reason string, found map[verdict.Hold]string) {
	level, msg := slog.LevelInfo, api.LogHoldBegins
	if !kind.Stops {
		msg = api.LogDryRun
	}
	if _, starting := found[verdict.HoldStarting]; kind.Severity == verdict.Bad && (!starting || !kind.AtStart) {
		level = slog.LevelWarn
	}
	g.logger.Log(context.Background(), level, msg, "hold", string(kind.Hold), "reason", reason)
}

// updateInterval is the maximum time between two readings of the signals.
const updateInterval = 50 * time.Millisecond

// wait blocks until the gate is open.
func (g *gate) wait(ctx context.Context) error {
	tick := time.NewTicker(updateInterval)
	defer tick.Stop()
	for !g.open() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// watch keeps the holds up to date while no lock is due. It begins with a reading: until the first
// one the metrics show none of the holds.
func (g *gate) watch(ctx context.Context) error {
	g.open()
	return every(ctx, updateInterval, func() { g.open() })
}

// every calls do after each interval until ctx is done, and then returns nil.
func every(ctx context.Context, interval time.Duration, do func()) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-ctx.Done():
			return nil
		}
	}
}

// holds returns the holds in force, in the order of their declaration.
func (g *gate) holds() (all []api.Hold) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, hold := range verdict.AllHolds() {
		if h, held := g.active[hold]; held {
			h.Since = h.Since.UTC()
			all = append(all, h)
		}
	}
	return all
}
