package table

import (
	"context"
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Take waits until at least one lock is due and returns at most most, the
// longest due first. Each must be answered with Postpone, unless it was
// removed: then Gone tells when that was seen.
func (t *Table) Take(ctx context.Context, most int) (Batch, error) {
	waiting := &taker{most: most, got: make(chan Batch, 1)}
	if err := t.do(ctx, func(*core) { t.takers = append(t.takers, waiting) }); err != nil {
		return Batch{}, err
	}
	select {
	case got := <-waiting.got:
		return got, nil
	case <-t.stopped:
		return Batch{}, ErrStopped
	case <-ctx.Done():
		return Batch{}, t.leave(ctx, waiting)
	}
}

// leave withdraws a taker, and puts back what it was given in the meantime.
func (t *Table) leave(ctx context.Context, gone *taker) error {
	err := t.do(context.WithoutCancel(ctx), func(c *core) {
		for i, w := range t.takers {
			if w == gone {
				t.takers = append(t.takers[:i:i], t.takers[i+1:]...)
				return
			}
		}
		for _, l := range (<-gone.got).Locks {
			c.putBack(l.Name, l.Token)
		}
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}

// Park is the delay that puts a lock back until any key of it changes.
const Park time.Duration = -1

// Postpone puts a lock back that Take gave out, to be given out again after a
// delay. It does nothing where the lock has changed since.
func (t *Table) Postpone(ctx context.Context, name string, token int64, delay time.Duration) error {
	return t.do(ctx, func(c *core) { c.postpone(name, token, delay) })
}

// Gone gives the locks that vanished after Take had given them out. It must be
// read, or the table keeps them.
func (t *Table) Gone() <-chan []Gone { return t.gone }

func (c *core) take(most int) Batch {
	now := c.now()
	b := Batch{Locks: make([]Taken, 0, min(most, c.ready.Len())), Pressure: c.pressure(now)}
	for len(b.Locks) < most {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, handed)
		e.marks |= out
		b.Locks = append(b.Locks, Taken{Lock: e.Lock, Sight: c.sight(e, now), Since: now.time(e.due), Attempts: int(e.attempts)})
	}
	return b
}

func (c *core) pressure(now reading) Pressure {
	return Pressure{
		CameDue: c.cameDue.count(now.mono),
		Dated:   c.counts[lock.Held] + c.counts[lock.Overdue] + c.counts[lock.Expired],
		Backlog: c.backlog,
	}
}

func (c *core) postpone(name string, token int64, delay time.Duration) {
	now := c.now()
	e := c.handed(name, token)
	if e == nil {
		return
	}
	if delay == Park {
		c.setPhase(e, parked)
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

// putBack is for a lock that was given out and reached nobody.
func (c *core) putBack(name string, token int64) {
	if e := c.handed(name, token); e != nil {
		c.wait(e, c.clock.read())
	}
}

// handed takes note that a lock was answered for, and returns it if it is
// still as it was given out.
func (c *core) handed(name string, token int64) *entry {
	e := c.locks[name]
	if e == nil || e.Token != token {
		return nil
	}
	e.marks &^= out
	if e.phase != handed {
		return nil
	}
	return e
}
