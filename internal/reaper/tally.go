package reaper

import (
	"maps"
	"sync"
	"time"

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
	open map[removalID]*attempt
	// unanswered are those that ended without an answer, of locks that are still there.
	unanswered map[removalID]*attempt
}

// id is that of the attempt before its outcome is known: also of an orphan without the revision.
func (a *attempt) id() removalID { return removalID{name: a.due.Name, token: a.due.Token} }

func newTally(l *Ledger) *tally {
	t := &tally{ledger: l, open: make(map[removalID]*attempt), unanswered: make(map[removalID]*attempt)}
	t.stats.Removed = map[verdict.Trigger]uint64{verdict.Expiry: 0, verdict.Orphan: 0, verdict.Manual: 0, verdict.Presumed: 0}
	t.stats.Failures = make(map[lockstore.Reason]uint64)
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

// end counts the end of an attempt. It returns the attempt that deleted the lock, as far as is known, if its event has
// already come.
func (t *tally) end(a *attempt, count func(*Stats, *attempt)) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	if count != nil {
		count(&t.stats, a)
	}
	if t.open[a.id()] != a {
		return nil // it was not announced
	}
	if a.deleted > 0 {
		a.answered = true
		return t.match(a)
	}
	delete(t.open, a.id())
	if a.reason == lockstore.ReasonAmbiguous {
		t.keep(a)
	}
	if a.gone != nil {
		return t.closed(a.gone)
	}
	return nil
}

func (t *tally) keep(a *attempt) {
	const maxUnanswered = time.Hour // how long an attempt without an answer may still turn out to have deleted the lock
	for id, old := range t.unanswered {
		if time.Since(old.ended) > maxUnanswered {
			delete(t.unanswered, id) // the lock was renewed, and released in time
		}
	}
	a.ended = time.Now()
	t.unanswered[a.id()] = a
}

// gone is called when the deletion of a lock was observed. It returns the attempt that deleted the lock, as far as is
// known, unless its answer may still come.
func (t *tally) gone(g table.Gone) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.open[removalID{name: g.Name, token: g.Token}]
	if a == nil {
		return t.closed(&g)
	}
	a.gone = &g
	return t.match(a)
}

// closed is for a deletion that no answer explains. It returns the attempt without an answer that is presumed to have
// deleted the lock.
func (t *tally) closed(g *table.Gone) *attempt {
	id := removalID{name: g.Name, token: g.Token}
	a := t.unanswered[id]
	delete(t.unanswered, id)
	if a == nil || !a.explains(g) || t.ledger.knows(g) {
		t.byOther(g)
		return nil
	}
	a.gone, a.presumed, a.revision = g, true, g.Revision
	t.released(g.Token, &t.stats.ReleasedByOther)
	return a
}

// explains reports whether the deletion is as the attempt would have done it: of all keys at once, and none of them newer
// than when it was made.
func (a *attempt) explains(g *table.Gone) bool {
	return g.Whole && g.Past != nil && g.Past.Revision == a.due.Revision
}

// match ends a removal once both the answer and the event have come. It returns the attempt if its transaction caused the
// event, which the revision shows.
func (t *tally) match(a *attempt) *attempt {
	if !a.answered || a.gone == nil {
		return nil
	}
	delete(t.open, a.id())
	delete(t.unanswered, a.id())
	if a.gone.Revision != 0 && a.gone.Revision != a.revision {
		t.byOther(a.gone)
		return nil
	}
	t.released(a.due.Token, &t.stats.ReleasedBySelf)
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
