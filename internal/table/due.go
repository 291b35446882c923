package table

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Gone reports that a lock was deleted which Take had returned, or which was past its deadline.
type Gone struct {
	Name string
	// Token is the token of the lock, or 0 for an orphan.
	Token int64
	// Revision is the revision of the deletion, or 0 if only a listing showed it.
	Revision int64
	// At is when the deletion was observed, by the daemon's wall clock.
	At time.Time
	// Whole reports whether one transaction deleted all keys that the lock had.
	Whole bool
	// Past is the lock if it was past its auto_unlock_at, or an orphan that was due; nil
	// otherwise. Its other fields may have been deleted before the uuid.
	Past *protocol.Lock
}

// Due returns the channel that has a value as long as locks are due, and is closed once Run has
// returned. A value does not reserve a lock: another caller of Take may come first.
func (t *Table) Due() <-chan struct{} { return t.due }

// Take returns up to limit locks that are due within Options.Lead, the longest due first. It does
// not wait for any. Each must be answered with Postpone, unless it was removed: then Gone reports
// it. An orphan must be put back also then, since a key that was written meanwhile may be left of
// it.
func (t *Table) Take(ctx context.Context, limit int) (due []View, err error) {
	err = t.do(ctx, func(c *core) { due = c.take(limit) })
	return due, err
}

// UntilModified is the delay of Postpone for a lock that Take must not return again until a
// key of it is modified.
const UntilModified time.Duration = -1

// WhilePaused is the delay of Postpone for a lock whose removal is paused, WhileBraked for one that the brake keeps.
const (
	WhilePaused time.Duration = -2
	WhileBraked time.Duration = -3
)

// Postpone puts back a lock that Take returned, so that Take returns it again after a delay.
// The delay does not apply if the due has moved since.
func (t *Table) Postpone(ctx context.Context, v View, delay time.Duration) error {
	return t.do(ctx, func(c *core) { c.postpone(v, delay) })
}

// Gone returns the channel of the locks that were deleted after Take had returned them, or past
// their deadline. The table buffers them without limit until they are received.
func (t *Table) Gone() <-chan []Gone { return t.gone }

func (c *core) take(limit int) []View {
	now := c.now()
	all := make([]View, 0, min(limit, c.ready.Len()))
	for len(all) < limit {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, taken)
		e.mark(unanswered, true)
		all = append(all, c.view(e, now))
	}
	return all
}

func (c *core) postpone(v View, delay time.Duration) {
	now := c.now()
	e := c.answered(v.Name, v.Token)
	if e == nil {
		return
	}
	e.attempts = uint8(min(v.Attempts, math.MaxUint8))
	e.mark(slowRead, v.Slow)
	switch {
	case delay == UntilModified:
		c.setPhase(e, suspended)
	case delay == WhilePaused && c.options.Paused(e.Name):
		c.setPhase(e, paused)
	case delay == WhileBraked && c.options.Paused(e.Name):
		c.setPhase(e, braked)
	case delay == WhilePaused, delay == WhileBraked:
		c.setPhase(e, waiting) // that ended since the verdict
	default:
		c.setPhase(e, retrying)
		e.wake = now.mono + instant(max(0, delay))
		c.pending.set(e)
	}
	c.schedule(e, now)
}

func (c *core) resume() {
	now := c.now()
	for _, e := range c.locks {
		if e.phase.kept() {
			c.setPhase(e, waiting)
			c.schedule(e, now)
		}
	}
}

// answered clears the mark of a lock that Take returned. It returns nil, and reschedules the lock,
// if its due changed since Take.
func (c *core) answered(name string, token int64) *entry {
	e := c.locks[name]
	if e == nil || e.Token != token {
		return nil
	}
	e.mark(unanswered, false)
	if e.phase != taken {
		c.schedule(e, c.now())
		return nil
	}
	return e
}

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

// cameDue counts a lock that came due, once for each deadline, and delays it in a storm. dated is the number of locks
// with a deadline.
func (s *storm) cameDue(e *entry, now instant, dated int) {
	if e.has(cameDue) {
		return
	}
	e.mark(cameDue, true)
	came := s.came.count(now)
	all := dated + min(came, s.gone.count(now))
	s.came.add(now)
	if !s.rules.Storms(came, all) {
		return
	}
	if s.waiting == 0 {
		s.delayed, s.removed, s.until = 0, s.gone.count(now), 0
		s.logger.Warn(api.LogStormBegins, "came_due", came, "removed_before", s.removed, "of", all, "delay", s.rules.Storm.Delay)
	}
	e.mark(stormDelayed|stormWaiting, true)
	s.waiting++
	s.delayed++
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
		if !e.has(stormDelayed) {
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

func (w *window) add(now instant) {
	step := max(1, w.width/instant(len(w.slots)-1))
	slot, start := &w.slots[now/step%instant(len(w.slots))], now-now%step
	if slot.at != start {
		slot.at, slot.n = start, 0
	}
	slot.n++
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
