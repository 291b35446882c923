package reaper

import (
	"maps"
	"sync"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Stats counts what was done since the start.
type Stats struct {
	// Removed counts locks of which a transaction deleted something.
	Removed map[verdict.Trigger]uint64
	// Failures counts attempts without an answer, by reason.
	Failures map[lockstore.Reason]uint64
	// Conflicts counts verdicts on locks that were modified or released
	// concurrently, also by another replica.
	Conflicts uint64
	// Would counts the verdicts of a dry run.
	Would uint64
	// ReleasedBySelf and ReleasedByOther count the taken locks whose deletion was
	// observed.
	ReleasedBySelf, ReleasedByOther uint64
}

// tally counts, and matches the two signs of a removal, which come in any order:
// the answer to the transaction and the event of the watch.
type tally struct {
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
	// answered: the transaction deleted the lock.
	answered bool
	gone     *table.Gone
}

func newTally() *tally {
	t := &tally{open: make(map[lockID]*pending)}
	t.stats.Removed = map[verdict.Trigger]uint64{verdict.Expiry: 0, verdict.Orphan: 0, verdict.API: 0}
	t.stats.Failures = make(map[lockstore.Reason]uint64)
	for _, r := range lockstore.Reasons() {
		t.stats.Failures[r] = 0
	}
	return t
}

// Stats may be called concurrently with Run.
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

// begin is called before a transaction is sent: its event may come first.
func (t *tally) begin(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[lockID{a.due.Name, a.due.Token}] = &pending{attempt: a}
}

// end is called where the transaction deleted nothing, as far as is known.
func (t *tally) end(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := lockID{a.due.Name, a.due.Token}
	if p := t.open[id]; p != nil && p.gone != nil {
		t.released(id.token, &t.stats.ReleasedByOther)
	}
	delete(t.open, id)
}

// done is called where the transaction deleted the lock. It returns the attempt if
// its event has come already.
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

// gone is called when the deletion of a taken lock was observed. It returns the
// attempt that removed it, if the answer has come already.
func (t *tally) gone(g table.Gone) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.open[lockID{g.Name, g.Token}]
	if p == nil {
		t.released(g.Token, &t.stats.ReleasedByOther)
		return nil
	}
	p.gone = &g
	return t.match(p)
}

// match ends a removal once both signs have come. The revision shows whether the
// deletion observed is the one of the transaction.
func (t *tally) match(p *pending) *attempt {
	if !p.answered || p.gone == nil {
		return nil
	}
	a := p.attempt
	delete(t.open, lockID{a.due.Name, a.due.Token})
	if p.gone.Revision != 0 && p.gone.Revision != a.result.Revision {
		t.released(a.due.Token, &t.stats.ReleasedByOther)
		return nil
	}
	t.released(a.due.Token, &t.stats.ReleasedBySelf)
	a.goneAt = p.gone.At
	return a
}

// released counts the end of a lock; an orphan was not held.
func (t *tally) released(token int64, by *uint64) {
	if token != 0 {
		*by++
	}
}
