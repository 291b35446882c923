package table

import "github.com/etcd-unlocker/unlocker/internal/verdict"

// storm counts the locks that came due, and which of them are delayed because too
// many did.
type storm struct {
	rules verdict.StormRules
	// came counts the locks that came due within the window, gone those that were
	// deleted within it after they had come due, perhaps before it.
	came, gone window
	// waiting counts the delayed locks that wait for it now.
	waiting int
}

// delays counts a lock that came due, once for each deadline, and reports whether it
// is delayed. dated is the number of locks with a deadline.
func (s *storm) delays(e *entry, now instant, dated int) bool {
	if e.has(cameDue) {
		return false
	}
	e.mark(cameDue, true)
	came := s.came.count(now)
	delayed := s.rules.Storm(came, dated+min(came, s.gone.count(now)))
	s.came.add(now)
	if delayed {
		e.mark(stormDelayed|stormWaiting, true)
		s.waiting++
	}
	return delayed
}

// over is for a lock that is due, with all delays.
func (s *storm) over(e *entry) {
	if e.has(stormWaiting) {
		e.mark(stormWaiting, false)
		s.waiting--
	}
}

// forget is for a new deadline.
func (s *storm) forget(e *entry) {
	s.over(e)
	e.mark(cameDue|stormDelayed, false)
}

// dropped is for a lock that was deleted.
func (s *storm) dropped(e *entry, now instant) {
	s.over(e)
	if e.has(cameDue) {
		s.gone.add(now)
	}
}

// window counts events within a sliding time, to a 64th of it.
type window struct {
	width instant
	slots [64]struct {
		at instant
		n  int
	}
}

func (w *window) slot(now instant) (i int, start instant) {
	step := max(1, w.width/instant(len(w.slots)-1))
	return int(now / step % instant(len(w.slots))), now - now%step
}

func (w *window) add(now instant) {
	i, start := w.slot(now)
	if w.slots[i].at != start {
		w.slots[i].at, w.slots[i].n = start, 0
	}
	w.slots[i].n++
}

func (w *window) count(now instant) int {
	n := 0
	for i := range w.slots {
		if w.slots[i].at > now-w.width {
			n += w.slots[i].n
		}
	}
	return n
}
