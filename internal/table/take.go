package table

import (
	"context"
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Due is a lock that is due within Options.Lead.
type Due struct {
	protocol.Lock
	// Observation is the clock observation at the time At, which has a monotonic clock
	// reading.
	Observation verdict.Observation
	At          time.Time
	// OrphanIn is how long after At an orphan is due.
	OrphanIn time.Duration
	// Attempts and Slow are the caller's: Postpone keeps Attempts until the lock is modified, and
	// Slow until it has another deadline.
	Attempts int
	Slow     bool
}

// Gone reports that a lock was deleted which Take had returned, or which was past its deadline.
type Gone struct {
	Name string
	// Token is the token of the lock, or 0 for an orphan.
	Token int64
	// Revision is the revision of the deletion, or 0 if only a listing showed it.
	Revision int64
	// At is when the deletion was observed, by the daemon's wall clock.
	At time.Time
	// Past is the lock if it was past its auto_unlock_at, or an orphan that was due; nil
	// otherwise. Its other fields may have been deleted before the uuid.
	Past *protocol.Lock
}

// Take waits until at least one lock is due and returns up to limit locks, the
// longest due first. Each must be answered with Postpone, unless it was removed:
// then Gone reports it. An orphan must be put back also then, since a key that was
// written meanwhile may be left of it.
func (t *Table) Take(ctx context.Context, limit int) ([]Due, error) {
	waiting := &taker{limit: limit, got: make(chan []Due, 1)}
	if err := t.do(ctx, func(*core) { t.takers = append(t.takers, waiting) }); err != nil {
		return nil, err
	}
	select {
	case got := <-waiting.got:
		return got, nil
	case <-t.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, t.withdraw(ctx, waiting)
	}
}

// withdraw removes a taker, and puts back the locks that it got in the meantime.
func (t *Table) withdraw(ctx context.Context, canceled *taker) error {
	err := t.do(context.WithoutCancel(ctx), func(c *core) {
		for i, w := range t.takers {
			if w == canceled {
				t.takers = append(t.takers[:i:i], t.takers[i+1:]...)
				return
			}
		}
		for _, d := range <-canceled.got {
			c.putBack(d.Name, d.Token)
		}
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}

// UntilModified is the delay of Postpone for a lock that Take must not return again until a
// key of it is modified.
const UntilModified time.Duration = -1

// WhilePaused is the delay of Postpone for a lock whose removal is paused.
const WhilePaused time.Duration = -2

// Postpone puts back a lock that Take returned, so that Take returns it again after a delay.
// The delay does not apply if the due has moved since.
func (t *Table) Postpone(ctx context.Context, d Due, delay time.Duration) error {
	return t.do(ctx, func(c *core) { c.postpone(d, delay) })
}

// Gone returns the channel of the locks that were deleted after Take had returned them, or past
// their deadline. The table buffers them without limit until they are received.
func (t *Table) Gone() <-chan []Gone { return t.gone }

func (c *core) take(limit int) []Due {
	now := c.now()
	at := c.clock.base.Add(time.Duration(now.mono))
	all := make([]Due, 0, min(limit, c.ready.Len()))
	for len(all) < limit {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, taken)
		e.mark(unanswered, true)
		d := Due{Lock: e.Lock, Observation: c.observation(e, now), At: at, Attempts: int(e.attempts), Slow: e.has(slowRead)}
		if e.Token == 0 {
			d.OrphanIn = time.Duration(c.dueAt(e, now) - now.mono)
		}
		all = append(all, d)
	}
	return all
}

func (c *core) postpone(d Due, delay time.Duration) {
	now := c.now()
	e := c.answered(d.Name, d.Token)
	if e == nil {
		return
	}
	e.attempts = uint8(min(d.Attempts, math.MaxUint8))
	e.mark(slowRead, d.Slow)
	switch {
	case delay == UntilModified:
		c.setPhase(e, suspended)
	case delay == WhilePaused && c.options.Paused(e.Name):
		c.setPhase(e, paused)
	case delay == WhilePaused:
		c.setPhase(e, waiting) // the pause ended since the verdict
	default:
		c.setPhase(e, retrying)
		e.wake = now.mono + instant(max(0, delay))
		c.pending.set(e)
		return
	}
	c.schedule(e, now)
}

// resume schedules all locks whose removal was paused.
func (c *core) resume() {
	now := c.now()
	for _, e := range c.locks {
		if e.phase == paused {
			c.setPhase(e, waiting)
			c.schedule(e, now)
		}
	}
}

// putBack puts back a lock for a call of Take that was canceled.
func (c *core) putBack(name string, token int64) {
	if e := c.answered(name, token); e != nil {
		c.setPhase(e, waiting)
		c.schedule(e, c.clock.read())
	}
}

// answered clears the mark of a lock that Take returned. It returns nil if the due was another
// one since, and schedules the lock by that.
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
