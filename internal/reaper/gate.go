package reaper

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// gate is closed while a hold that stops removals is in force.
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
	open := true
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

func (g *gate) wait(ctx context.Context) error {
	for !g.open() {
		select {
		case <-time.After(updateInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
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

// brakes have the removals in a row of each name that a brake applies to: those of all records, and of what these tell of
// removals before. So replicas that know the same records agree, in whatever order these came, and whoever wrote one
// without knowing another. A forged one keeps a lock or ends a count, and changes no due.
type brakes struct {
	mu      sync.Mutex
	streaks map[string]streak
}

// streak are the newest removals by their revisions, of which those count that are later than the last end of a count: by
// a user, or by a release. A replica whose clock is slow takes a removal for a release.
type streak struct {
	ends     []int64
	removals []api.Counted
}

func (s streak) since(start time.Time) (counted []api.Counted) {
	var ended int64
	for _, token := range s.ends {
		if !slices.ContainsFunc(s.removals, func(c api.Counted) bool { return c.Token == token }) {
			ended = max(ended, token)
		}
	}
	for _, c := range s.removals {
		if c.Revision > ended && c.At.After(start) {
			counted = append(counted, c)
		}
	}
	return counted
}

// forced returns how many removals count. Once there are enough no time ends that.
func (s streak) forced(p verdict.Policy, now time.Time) (forced int) {
	if n := len(s.removals); n > 0 {
		forced = len(s.since(s.removals[n-1].At.Add(-p.Brake.Window)))
	}
	if forced < p.Brake.MaxForced {
		forced = len(s.since(now.Add(-p.Brake.Window)))
	}
	return forced
}

// braking returns how many removals count against a lock, and from how many on it is kept: 0 without a brake.
func (r *Reaper) braking(name string) (forced, limit int) {
	p, s := r.streak(name)
	return s.forced(p, r.Now()), p.Brake.MaxForced
}

// streak returns the policy that applies to a name, and what is known of it.
func (r *Reaper) streak(name string) (p verdict.Policy, s streak) {
	if p, _ = r.Rules.Policy(name); p.Brake.MaxForced == 0 {
		return p, s
	}
	r.brakes.mu.Lock()
	defer r.brakes.mu.Unlock()
	return p, r.brakes.streaks[protocol.Clip([]byte(name), protocol.MaxName)]
}

// Braked reports whether a brake keeps the locks of a name. It does not block.
func (r *Reaper) Braked(name string) bool {
	forced, limit := r.braking(name)
	return limit > 0 && forced >= limit
}

// count counts a removal of this replica, and returns what its record tells.
func (r *Reaper) count(a *attempt) api.Forced {
	var counted []api.Counted
	if p, s := r.streak(a.due.Name); p.Brake.MaxForced > 0 && a.verdict.Trigger == verdict.Expiry {
		now := r.Now().UTC().Round(0)
		counted = append(s.since(now.Add(-p.Brake.Window)), api.Counted{Revision: a.revision, Token: a.record.Token, At: now})
	}
	f := r.ledger.self(a, counted...)
	r.learn(&f)
	return f
}

// learn counts a removal and those before it, or ends a count, and reports whether there was one. A release has the
// revision of its token.
func (r *Reaper) learn(f *api.Forced) bool {
	const maxStreaks = 50_000 // the maximum number of names that are counted: as many as there may be records
	p, _ := r.Rules.Policy(f.Name)
	if p.Brake.MaxForced == 0 {
		return false
	}
	r.brakes.mu.Lock()
	defer r.brakes.mu.Unlock()
	s, known := r.brakes.streaks[f.Name]
	before := s
	switch {
	case f.Trigger == verdict.Manual, f.Trigger == verdict.Ended:
		s.ends = slices.Compact(slices.Sorted(slices.Values(append(slices.Clip(s.ends), f.Revision))))
		s.ends = s.ends[max(0, len(s.ends)-p.Brake.MaxForced):]
	case f.Trigger != verdict.Orphan:
		all := slices.Clone(s.removals)
		for _, c := range append(slices.Clip(f.Counted), api.Counted{Revision: f.Revision, Token: f.Token, At: f.At}) {
			at, found := slices.BinarySearchFunc(all, c.Revision, func(c api.Counted, rev int64) int { return cmp.Compare(c.Revision, rev) })
			if !found && c.Revision <= f.Revision {
				all = slices.Insert(all, at, c)
			}
		}
		s.removals = slices.Clone(all[max(0, len(all)-p.Brake.MaxForced):])
	}
	if known || len(r.brakes.streaks) < maxStreaks {
		r.brakes.streaks[f.Name] = s
	}
	return len(s.since(time.Time{})) < len(before.since(time.Time{}))
}

// Restored is for etcd that was restored, maybe to an older revision: what counted goes on counting, and any end from
// now on ends it.
func (r *Reaper) Restored() {
	r.brakes.mu.Lock()
	defer r.brakes.mu.Unlock()
	for name, s := range r.brakes.streaks {
		counted := s.since(time.Time{})
		for i := range counted {
			counted[i].Revision, counted[i].Token = int64(i+1), 0
		}
		r.brakes.streaks[name] = streak{removals: counted}
	}
}

// Released ends the count of a name, since its holder released a lock in time. It does not block. A record tells the
// replicas that start later.
func (r *Reaper) Released(name string, token int64) {
	if _, s := r.streak(name); len(s.removals) == 0 {
		return
	}
	f := api.Forced{At: r.Now(), Name: protocol.Clip([]byte(name), protocol.MaxName), Token: token, Revision: token, Trigger: verdict.Ended}
	if r.learn(&f) {
		r.recorder.add(f)
	}
}

// RecordGone is for the end of the lease of a record. What keeps locks is written again, since it waits for a user. What
// is too old for any brake is forgotten.
func (r *Reaper) RecordGone(name string) {
	_, s := r.streak(name)
	switch {
	case r.Braked(name):
		last := s.removals[len(s.removals)-1]
		r.recorder.add(api.Forced{At: last.At, Name: name, Trigger: verdict.Expiry, Revision: last.Revision, Counted: s.since(time.Time{})})
	case len(s.since(r.Now().Add(-ledgerTime))) == 0:
		r.brakes.mu.Lock()
		defer r.brakes.mu.Unlock()
		delete(r.brakes.streaks, name)
	}
}
