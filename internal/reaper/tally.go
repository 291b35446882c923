package reaper

import (
	"maps"
	"sync"
)

// Stats counts what was done since the start.
type Stats struct {
	// Removed counts locks of which a transaction deleted something.
	Removed map[Trigger]uint64
	// Failures counts attempts that did not come to an answer, by reason.
	Failures map[Reason]uint64
	// Conflicts counts verdicts that came too late: the lock was renewed or
	// released first, or another replica won.
	Conflicts uint64
	// Would counts the verdicts of a dry run.
	Would uint64
	// ReleasedBySelf and ReleasedByOther count the candidates seen to vanish.
	ReleasedBySelf, ReleasedByOther uint64
}

// tally counts, and brings together the two signs of a removal, which come in
// any order: the answer to the transaction and the event of the watch.
type tally struct {
	mu    sync.Mutex
	stats Stats
	open  map[candidateID]*pending
}

type candidateID struct {
	name  string
	token int64
}

type pending struct {
	attempt *attempt
	// answered: the transaction deleted the lock.
	answered bool
	gone     *Gone
}

func newTally() *tally {
	t := &tally{open: make(map[candidateID]*pending)}
	t.stats.Removed = map[Trigger]uint64{Expiry: 0, Orphan: 0, API: 0}
	t.stats.Failures = make(map[Reason]uint64)
	for _, r := range Reasons() {
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

func (t *tally) failed(r Reason) { t.update(func(s *Stats) { s.Failures[r]++ }) }
func (t *tally) conflict()       { t.update(func(s *Stats) { s.Conflicts++ }) }
func (t *tally) would()          { t.update(func(s *Stats) { s.Would++ }) }

// begin is called before a transaction is sent: its event may come first.
func (t *tally) begin(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[candidateID{a.Name, a.Token}] = &pending{attempt: a}
}

// end is called where the transaction deleted nothing, as far as is known.
func (t *tally) end(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := candidateID{a.Name, a.Token}
	if p := t.open[id]; p != nil && p.gone != nil {
		t.released(id.token, &t.stats.ReleasedByOther)
	}
	delete(t.open, id)
}

// done is called where the transaction deleted the lock. It returns the attempt
// if its event is in already.
func (t *tally) done(a *attempt) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Removed[a.verdict.Trigger]++
	p := t.open[candidateID{a.Name, a.Token}]
	if p == nil {
		return nil
	}
	p.answered = true
	return t.match(p)
}

// gone is called when a candidate was seen to vanish. It returns the attempt
// that removed it, if the answer is in already.
func (t *tally) gone(g Gone) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.open[candidateID{g.Name, g.Token}]
	if p == nil {
		t.released(g.Token, &t.stats.ReleasedByOther)
		return nil
	}
	p.gone = &g
	return t.match(p)
}

// match ends a removal whose two signs are in. The revision tells whether the
// deletion that was seen is the one that was made.
func (t *tally) match(p *pending) *attempt {
	if !p.answered || p.gone == nil {
		return nil
	}
	a := p.attempt
	delete(t.open, candidateID{a.Name, a.Token})
	if p.gone.Revision != 0 && p.gone.Revision != a.result.revision {
		t.released(a.Token, &t.stats.ReleasedByOther)
		return nil
	}
	t.released(a.Token, &t.stats.ReleasedBySelf)
	a.goneAt = p.gone.At
	return a
}

// released counts the end of a lock; an orphan was none.
func (t *tally) released(token int64, by *uint64) {
	if token != 0 {
		*by++
	}
}
