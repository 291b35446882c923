package table

import (
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Stats are the aggregates of the table.
type Stats struct {
	// Locks is the number of locks in each state, indexed by lock.State.
	Locks [lock.NumStates]int
	// Backlog counts the locks that are due and still there, StormDelayed those that
	// would be due but for a storm.
	Backlog, StormDelayed int
	// Overdue are the locks past their alert time, longest first, up to the limit
	// asked for; OverdueTotal counts all of them.
	Overdue      []lock.Lock
	OverdueTotal int
	// Acquired, Renewed, Released and Drift are counters since the start. Released does not
	// include locks that Take returned, which Gone reports.
	Acquired, Renewed, Released, Drift uint64
	// Clocks are the clocks of the holders' hosts.
	Clocks Clocks
}

func (c *core) stats(overdue int) Stats {
	c.advance()
	s := Stats{
		Locks:        c.counts,
		Backlog:      c.backlog,
		StormDelayed: c.storm.waiting,
		OverdueTotal: c.overdue.Len(),
		Acquired:     c.totals.acquired,
		Renewed:      c.totals.renewed,
		Released:     c.totals.released,
		Drift:        c.totals.drift,
		Clocks:       c.hosts.clocks(c.clock.read().mono, c.options.Rules.Tolerance, overdue),
	}
	s.Overdue = make([]lock.Lock, 0, min(overdue, s.OverdueTotal))
	c.overdue.smallest(overdue, func(e *entry) { s.Overdue = append(s.Overdue, e.Lock) })
	return s
}

// Query selects locks for a page.
type Query struct {
	// States are the states to include; empty means all.
	States []lock.State
	// Contains is a part of the name, Hostname the whole name of the host; empty means any.
	Contains, Hostname string
	// After excludes names up to and including this one.
	After string
	// Limit is the maximum size of the page.
	Limit int
}

// Item is a lock as it was when the page was made.
type Item struct {
	lock.Lock
	State lock.State
	// Observation is the clock observation of the lock.
	Observation verdict.Observation
	// Due is when Take may return the lock, by the daemon's wall clock; zero means never.
	Due time.Time
}

func (c *core) item(e *entry, now reading) Item {
	it := Item{Lock: e.Lock, State: e.State(now.wall), Observation: c.observation(e, now)}
	if e.Removable() && e.phase != suspended {
		it.Due = now.time(c.dueAt(e, now))
	}
	return it
}

// page scans all locks, and returns the first Limit of those that match, ordered by name.
func (c *core) page(q Query) (items []Item, more bool) {
	now := c.now()
	var found []*entry
	last := "" // no name after it is on the page
	for _, e := range c.locks {
		if last != "" && e.Name > last || !q.matches(e, now) {
			continue
		}
		found = append(found, e)
		if len(found) > 2*q.Limit+64 {
			found = first(found, q.Limit+1)
			last = found[q.Limit].Name
		}
	}
	found = first(found, q.Limit+1)
	more = len(found) > q.Limit
	for _, e := range found[:min(len(found), q.Limit)] {
		items = append(items, c.item(e, now))
	}
	return items, more
}

func first(entries []*entry, n int) []*entry {
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.Name, b.Name) })
	return entries[:min(n, len(entries))]
}

func (q *Query) matches(e *entry, now reading) bool {
	return e.Name > q.After &&
		(len(q.States) == 0 || slices.Contains(q.States, e.State(now.wall))) &&
		(q.Hostname == "" || e.Hostname() == q.Hostname) &&
		strings.Contains(e.Name, q.Contains)
}
