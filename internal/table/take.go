package table

import (
	"context"
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Due is a lock that is due within Options.Lead.
type Due struct {
	lock.Lock
	// Observation is the clock observation at the time At, which has a monotonic clock
	// reading.
	Observation verdict.Observation
	At          time.Time
	// OrphanDue is when an orphan is due, by the daemon's wall clock; zero for a lock.
	OrphanDue time.Time
	// Attempts is the number of calls of Postpone with a delay since the lock was modified.
	Attempts int
}

// Batch is what Take returns.
type Batch struct {
	Due []Due
	verdict.Pressure
}

// Gone reports that a lock that Take had returned was deleted.
type Gone struct {
	Name string
	// Token is the token of the lock, or 0 for an orphan.
	Token int64
	// Revision is the revision of the deletion, or 0 if only a listing showed it.
	Revision int64
	// At is when the deletion was observed, by the daemon's wall clock.
	At time.Time
}

// Take blocks until a lock is due, and returns up to limit locks, those with the earliest due
// first. The caller must put each of them back with Postpone, unless it was removed: then Gone
// reports it.
func (t *Table) Take(ctx context.Context, limit int) (Batch, error) {
	waiting := &taker{limit: limit, got: make(chan Batch, 1)}
	if err := t.do(ctx, func(*core) { t.takers = append(t.takers, waiting) }); err != nil {
		return Batch{}, err
	}
	select {
	case got := <-waiting.got:
		return got, nil
	case <-t.stopped:
		return Batch{}, ErrStopped
	case <-ctx.Done():
		return Batch{}, t.withdraw(ctx, waiting)
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
		for _, d := range (<-canceled.got).Due {
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

// Postpone puts back a lock that Take returned, so that Take returns it again after a delay.
// It does nothing if the lock was modified since.
func (t *Table) Postpone(ctx context.Context, name string, token int64, delay time.Duration) error {
	return t.do(ctx, func(c *core) { c.postpone(name, token, delay) })
}

// Gone returns the channel of the locks that were deleted after Take had returned them. The
// table buffers them without limit until they are received.
func (t *Table) Gone() <-chan []Gone { return t.gone }

// Pressure returns how many locks are due.
func (t *Table) Pressure(ctx context.Context) (p verdict.Pressure, err error) {
	err = t.do(ctx, func(c *core) { p = c.pressure(c.now()) })
	return p, err
}

func (c *core) take(limit int) Batch {
	now, at := c.now(), time.Now()
	b := Batch{Due: make([]Due, 0, min(limit, c.ready.Len())), Pressure: c.pressure(now)}
	for len(b.Due) < limit {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, taken)
		e.marks |= unanswered
		d := Due{Lock: e.Lock, Observation: c.observation(e, now), At: at, Attempts: int(e.attempts)}
		if e.Token == 0 {
			d.OrphanDue = now.time(e.due)
		}
		b.Due = append(b.Due, d)
	}
	return b
}

func (c *core) pressure(now reading) verdict.Pressure {
	return verdict.Pressure{
		CameDue: c.cameDue.count(now.mono),
		Dated:   c.counts[lock.Held] + c.counts[lock.Overdue] + c.counts[lock.Expired],
		Backlog: c.backlog,
	}
}

func (c *core) postpone(name string, token int64, delay time.Duration) {
	now := c.now()
	e := c.answered(name, token)
	if e == nil {
		return
	}
	if delay == UntilModified {
		c.setPhase(e, suspended)
		c.schedule(e, now)
		return
	}
	e.attempts += min(1, math.MaxUint8-e.attempts)
	c.setPhase(e, retrying)
	if delay <= 0 {
		c.wait(e, now)
		return
	}
	e.wake = now.mono + instant(delay)
	c.pending.set(e)
}

// putBack puts back a lock for a call of Take that was canceled.
func (c *core) putBack(name string, token int64) {
	if e := c.answered(name, token); e != nil {
		c.wait(e, c.clock.read())
	}
}

// answered clears the mark of a lock that Take returned. It returns nil if the lock was
// modified since.
func (c *core) answered(name string, token int64) *entry {
	e := c.locks[name]
	if e == nil || e.Token != token {
		return nil
	}
	e.marks &^= unanswered
	if e.phase != taken {
		return nil
	}
	return e
}
