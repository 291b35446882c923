package table

import (
	"context"
	"math"
	"time"

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
		return
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
