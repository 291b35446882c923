package table

import (
	"context"
	"math"
	"time"
)

// Take waits until at least one lock is due and returns at most most, the
// longest due first. Each must be answered with Postpone, unless it was
// removed: then Gone tells when that was seen.
func (t *Table) Take(ctx context.Context, most int) ([]Taken, error) {
	waiting := &taker{most: most, got: make(chan []Taken, 1)}
	if err := t.do(ctx, func(*core) { t.takers = append(t.takers, waiting) }); err != nil {
		return nil, err
	}
	select {
	case got := <-waiting.got:
		return got, nil
	case <-t.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, t.leave(ctx, waiting)
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
		for _, l := range <-gone.got {
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

func (c *core) take(most int) []Taken {
	now := c.now()
	taken := make([]Taken, 0, min(most, c.ready.Len()))
	for len(taken) < most {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, handed)
		taken = append(taken, Taken{Lock: e.Lock, Due: now.time(e.due), Attempts: int(e.attempts)})
	}
	return taken
}

func (c *core) postpone(name string, token int64, delay time.Duration) {
	now := c.now()
	e := c.handed(name, token)
	if e == nil {
		return
	}
	if delay == Park {
		e.due = never
		c.setPhase(e, parked)
	} else {
		e.attempts += min(1, math.MaxUint8-e.attempts)
		e.due = max(e.due, now.mono+instant(delay))
		c.setPhase(e, retrying)
	}
	c.wait(e, now)
}

// putBack is for a lock that was given out and reached nobody.
func (c *core) putBack(name string, token int64) {
	if e := c.handed(name, token); e != nil {
		c.wait(e, c.clock.read())
	}
}

// handed returns the lock if it is still as it was given out.
func (c *core) handed(name string, token int64) *entry {
	if e := c.locks[name]; e != nil && e.phase == handed && e.Token == token {
		return e
	}
	return nil
}
