package table

import (
	"context"
	"time"
)

// Take waits until at least one lock is due and returns at most max, the
// longest due first. Each must be answered with Postpone, unless it was
// removed: then Gone tells when that was seen.
func (t *Table) Take(ctx context.Context, max int) ([]Taken, error) {
	waiting := &taker{max: max, got: make(chan []Taken, 1)}
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
			c.postpone(l.Name, l.Token, 0)
		}
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}

// Park, as a delay, puts a lock back until it changes.
const Park time.Duration = -1

// Postpone puts a lock back that Take gave out, to be given out again after a
// delay. It does nothing where the lock has changed since.
func (t *Table) Postpone(ctx context.Context, name string, token int64, delay time.Duration) error {
	return t.do(ctx, func(c *core) { c.postpone(name, token, delay) })
}

// Gone gives the locks that vanished after Take had given them out. It must be
// read, or the table keeps them.
func (t *Table) Gone() <-chan []Gone { return t.gone }

func (c *core) take(max int) []Taken {
	taken := make([]Taken, 0, min(max, c.ready.Len()))
	for len(taken) < max {
		e := c.ready.top()
		if e == nil {
			break
		}
		c.setPhase(e, handed)
		taken = append(taken, Taken{Lock: e.Lock, Attempts: int(e.attempts)})
	}
	return taken
}

func (c *core) postpone(name string, token int64, delay time.Duration) {
	e := c.locks[name]
	if e == nil || e.phase != handed || e.Token != token {
		return
	}
	if delay < 0 {
		e.due = never
		c.setPhase(e, parked)
		return
	}
	now := c.now()
	if e.attempts < 255 {
		e.attempts++
	}
	e.due = max(e.due, now.mono+instant(delay))
	c.setPhase(e, retrying)
	c.wakeAt(e, e.due, now)
}
