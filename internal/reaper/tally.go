package reaper

import (
	"maps"
	"sync"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Stats are counters since the start.
type Stats struct {
	// Removed counts the locks of which a transaction deleted keys.
	Removed map[verdict.Trigger]uint64
	// Failures counts failed attempts to read or to remove a lock, by reason.
	Failures map[lockstore.Reason]uint64
	// Conflicts counts the attempts on locks that were modified or released concurrently,
	// including those that another replica removed.
	Conflicts uint64
	// Would counts the verdicts of a dry run.
	Would uint64
	// ReleasedBySelf and ReleasedByOther count the locks whose deletion the table reported, by
	// whether this replica deleted them.
	ReleasedBySelf, ReleasedByOther uint64
}

// tally counts, and matches the answer to a transaction with the event of the watch, which come
// in any order.
type tally struct {
	ledger *Ledger

	mu    sync.Mutex
	stats Stats
	open  map[lockID]*pending
}

type lockID struct {
	name  string
	token int64
}

type pending struct {
	attempt *attempt
	// answered is set if the transaction deleted the lock.
	answered bool
	// gone is the event of the deletion; nil before it came.
	gone *table.Gone
}

func newTally(l *Ledger) *tally {
	t := &tally{ledger: l, open: make(map[lockID]*pending)}
	t.stats.Removed = map[verdict.Trigger]uint64{verdict.Expiry: 0, verdict.Orphan: 0, verdict.Manual: 0}
	t.stats.Failures = make(map[lockstore.Reason]uint64)
	for _, r := range lockstore.Reasons() {
		t.stats.Failures[r] = 0
	}
	return t
}

// Stats returns the present counters. It may be called concurrently with Run.
func (r *Reaper) Stats() Stats {
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	s := r.tally.stats
	s.Removed, s.Failures = maps.Clone(s.Removed), maps.Clone(s.Failures)
	return s
}

func (t *tally) update(f func(*Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.stats)
}

func (t *tally) failed(r lockstore.Reason) { t.update(func(s *Stats) { s.Failures[r]++ }) }
func (t *tally) conflict()                 { t.update(func(s *Stats) { s.Conflicts++ }) }
func (t *tally) would()                    { t.update(func(s *Stats) { s.Would++ }) }

// begin is called before a transaction is sent, since its event may come before its answer.
func (t *tally) begin(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[lockID{a.due.Name, a.due.Token}] = &pending{attempt: a}
}

// end is called if the transaction is not known to have deleted the lock.
func (t *tally) end(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := lockID{a.due.Name, a.due.Token}
	if p := t.open[id]; p != nil && p.gone != nil {
		t.byOther(p.gone)
	}
	delete(t.open, id)
}

// done is called if the transaction deleted the lock. It returns the attempt if its event has
// already come.
func (t *tally) done(a *attempt) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Removed[a.verdict.Trigger]++
	p := t.open[lockID{a.due.Name, a.due.Token}]
	if p == nil {
		return nil
	}
	p.answered = true
	return t.match(p)
}

// gone is called when the deletion of a lock was observed. It returns the attempt that
// deleted the lock if its answer has already come.
func (t *tally) gone(g table.Gone) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.open[lockID{g.Name, g.Token}]
	if p == nil {
		t.byOther(&g)
		return nil
	}
	p.gone = &g
	return t.match(p)
}

// match ends a removal once both the answer and the event have come. The revision shows whether
// the transaction caused the event.
func (t *tally) match(p *pending) *attempt {
	if !p.answered || p.gone == nil {
		return nil
	}
	a := p.attempt
	delete(t.open, lockID{a.due.Name, a.due.Token})
	if p.gone.Revision != 0 && p.gone.Revision != a.result.Revision {
		t.byOther(p.gone)
		return nil
	}
	t.released(a.due.Token, &t.stats.ReleasedBySelf)
	a.goneAt = p.gone.At
	return a
}

// byOther is for a deletion that was not by this replica, as far as it knows.
func (t *tally) byOther(g *table.Gone) {
	t.released(g.Token, &t.stats.ReleasedByOther)
	if g.Past != nil {
		t.ledger.other(g.Past, g.Revision)
	}
}

// released counts the end of a lock. An orphan, whose token is 0, is not counted.
func (t *tally) released(token int64, by *uint64) {
	if token != 0 {
		*by++
	}
}
