package table

import (
	"log/slog"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// storm counts the locks that came due, and which of them are delayed because too many did.
type storm struct {
	rules verdict.Rules
	// came counts the locks that came due within the window, gone those that were
	// deleted within it after they had come due, perhaps before it.
	came, gone window
	// waiting counts the delayed locks that wait for it now: there is a storm while there are any.
	waiting int
	// Of this storm: delayed counts all locks that it delayed, removed those that were deleted after they
	// had come due without a delay, and until is when the last one that waits comes due, or later.
	delayed, removed int
	until            instant
	logger           *slog.Logger
}

// delays counts a lock that came due, once for each deadline, and reports whether it
// is delayed. dated is the number of locks with a deadline.
func (s *storm) delays(e *entry, now instant, dated int) bool {
	if e.has(cameDue) {
		return false
	}
	e.mark(cameDue, true)
	came := s.came.count(now)
	all := dated + min(came, s.gone.count(now))
	delayed := s.rules.Storms(came, all)
	s.came.add(now)
	if !delayed {
		return false
	}
	if s.waiting == 0 {
		s.delayed, s.removed, s.until = 0, s.gone.count(now), 0
		s.logger.Warn(api.LogStormBegins, "came_due", came, "removed_before", s.removed, "of", all, "delay", s.rules.Storm.Delay)
	}
	e.mark(stormDelayed|stormWaiting, true)
	s.waiting++
	s.delayed++
	return true
}

// status returns nil if there is no storm.
func (s *storm) status(now reading) *api.Storm {
	if s.waiting == 0 {
		return nil
	}
	return &api.Storm{Delayed: s.waiting, RemovedBefore: s.removed, Until: now.time(s.until).UTC()}
}

// over is for a lock that is due, with all delays.
func (s *storm) over(e *entry) {
	if e.has(stormWaiting) {
		e.mark(stormWaiting, false)
		if s.waiting--; s.waiting == 0 {
			s.logger.Warn(api.LogStormEnds, "delayed", s.delayed, "removed_before", s.removed)
		}
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
		if s.waiting > 0 && !e.has(stormDelayed) {
			s.removed++
		}
	}
}

// window counts events within a sliding time, and up to a 63rd of it longer: it rather shows a storm than misses one.
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
		if w.slots[i].at > now-w.width-w.width/instant(len(w.slots)-1) {
			n += w.slots[i].n
		}
	}
	return n
}
