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
	// RecordsDropped counts the records of removals that were not written.
	RecordsDropped uint64
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
	// open are the attempts that were announced, until they have ended or their event has come.
	open map[lockID]*attempt
}

type lockID struct {
	name  string
	token int64
}

func (a *attempt) id() lockID { return lockID{a.due.Name, a.due.Token} }

func newTally(l *Ledger) *tally {
	t := &tally{ledger: l, open: make(map[lockID]*attempt)}
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

// begin is called before a transaction is sent, since its event may come before its answer.
func (t *tally) begin(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[a.id()] = a
}

// end counts the end of an attempt. It reports whether the attempt deleted the lock and its event
// has already come.
func (t *tally) end(a *attempt, count func(*Stats, *attempt)) (confirmed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if count != nil {
		count(&t.stats, a)
	}
	if t.open[a.id()] != a {
		return false // it was not announced
	}
	if a.deleted > 0 {
		a.answered = true
		return t.match(a)
	}
	delete(t.open, a.id())
	if a.gone != nil {
		t.byOther(a.gone)
	}
	return false
}

// gone is called when the deletion of a lock was observed. It returns the attempt that deleted the
// lock if its answer has already come.
func (t *tally) gone(g table.Gone) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.open[lockID{g.Name, g.Token}]
	if a == nil {
		t.byOther(&g)
		return nil
	}
	if a.gone = &g; t.match(a) {
		return a
	}
	return nil
}

// match ends a removal once both the answer and the event have come. It reports whether the
// transaction caused the event, which the revision shows.
func (t *tally) match(a *attempt) bool {
	if !a.answered || a.gone == nil {
		return false
	}
	delete(t.open, a.id())
	if a.gone.Revision != 0 && a.gone.Revision != a.revision {
		t.byOther(a.gone)
		return false
	}
	t.released(a.due.Token, &t.stats.ReleasedBySelf)
	return true
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
