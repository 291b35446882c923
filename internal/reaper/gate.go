package reaper

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/message"
)

// gate is shut while a hold is in force, or while a probe is overdue.
type gate struct {
	signals func() Signals
	logger  *slog.Logger

	mu       sync.Mutex
	state    holdState
	pressure Pressure
	active   map[Hold]HoldStatus
}

// HoldStatus is a hold in force.
type HoldStatus struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

func newGate(rules HoldRules, signals func() Signals, logger *slog.Logger) *gate {
	return &gate{signals: signals, logger: logger, state: holdState{HoldRules: rules}, active: make(map[Hold]HoldStatus)}
}

// press notes how much is due and looks at once, so that nobody's older pressure
// hides a storm. It is called with what Take gave, before anything of that is
// removed.
func (g *gate) press(p Pressure) (open bool) {
	return g.look(&p)
}

// open looks at all signals and tells whether locks may be removed now. A dry
// run is a hold, but lets verdicts be made.
func (g *gate) open() bool { return g.look(nil) }

func (g *gate) look(p *Pressure) (open bool) {
	s := g.signals()
	g.mu.Lock()
	defer g.mu.Unlock()
	if p != nil {
		g.pressure = *p
	}
	now := time.Now()
	found := g.state.update(now, s, g.pressure)
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
			g.logger.Warn(message.HoldBegins, "hold", string(hold), "reason", reason)
		}
		g.active[hold] = HoldStatus{Since: was.Since, Reason: reason}
	}
	_, dry := found[HoldDryRun]
	return !s.Overdue && (len(found) == 0 || dry && len(found) == 1)
}

// lookEvery is how often the signals are looked at where nothing else happens.
const lookEvery = 50 * time.Millisecond

// pass waits until the gate is open.
func (g *gate) pass(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
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

// watch keeps holds up to date while no lock is due.
func (g *gate) watch(ctx context.Context, pressure func(context.Context) (Pressure, error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if p, err := pressure(ctx); err == nil {
			g.press(p)
		} else {
			g.open()
		}
	}
}

func (g *gate) holds() map[Hold]HoldStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.active)
}
