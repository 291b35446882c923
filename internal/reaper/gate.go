package reaper

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// gate is closed while a hold is in force, or while a probe is overdue.
type gate struct {
	signals func() verdict.Signals
	logger  *slog.Logger

	mu      sync.Mutex
	machine *verdict.Holds
	active  map[verdict.Hold]HoldStatus
}

// HoldStatus is a hold in force.
type HoldStatus struct {
	Since  time.Time
	Reason string
}

func newGate(rules verdict.HoldRules, signals func() verdict.Signals, logger *slog.Logger) *gate {
	return &gate{signals: signals, logger: logger, machine: verdict.NewHolds(rules), active: make(map[verdict.Hold]HoldStatus)}
}

// open reads all signals and reports whether locks may be removed now. A dry run
// is a hold, but lets verdicts be made.
func (g *gate) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// Not before: an older reading that came after a newer one would end a hold, and begin it again.
	now := time.Now() // what fails after it is newer, and counts in the next reading
	s := g.signals()
	found := g.machine.Update(now, s)
	for hold, was := range g.active {
		if _, still := found[hold]; !still {
			delete(g.active, hold)
			g.logger.Info(message.HoldEnds, "hold", string(hold), "lasted", now.Sub(was.Since))
		}
	}
	for hold, reason := range found {
		was, already := g.active[hold]
		if !already {
			was.Since = now
			g.logBegin(hold, reason, found)
		}
		g.active[hold] = HoldStatus{Since: was.Since, Reason: reason}
	}
	_, dry := found[verdict.HoldDryRun]
	return !s.Overdue && (len(found) == 0 || dry && len(found) == 1)
}

// logBegin logs as a warning what is not a part of every start, nor configured or asked for.
func (g *gate) logBegin(hold verdict.Hold, reason string, found map[verdict.Hold]string) {
	if hold == verdict.HoldDryRun {
		g.logger.Info(message.DryRun, "reason", reason)
		return
	}
	level := slog.LevelWarn
	if _, starting := found[verdict.HoldStarting]; hold == verdict.HoldPaused || starting && hold != verdict.HoldAlarm {
		level = slog.LevelInfo // not connected yet; a failure to connect has its own warning
	}
	g.logger.Log(context.Background(), level, message.HoldBegins, "hold", string(hold), "reason", reason)
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

// watch keeps the holds up to date while no lock is due.
func (g *gate) watch(ctx context.Context) error {
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

func (g *gate) holds() map[verdict.Hold]HoldStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.active)
}
