package mutex

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxAbandoned is how many claims of a client are released in the background. The oldest give way; see the comment of the package.
const maxAbandoned = 1000

// abandoned is the release of a lock that nobody holds any more, or ever did: attempts to take it
// that were not answered may be executed late. It is done when it has deleted as many as those.
type abandoned struct {
	release
	late  int       // attempts that may still take the lock
	until time.Time // the deadline of the last of them
	next  time.Time
	pause time.Duration
	done  bool
}

func (a *abandoned) answered(got answer) bool {
	if got.succeeded {
		a.late--
	}
	return a.late <= 0
}

// abandon returns the release for the failed claim, or nil if it needs none.
func (cl *claim) abandon() *abandoned {
	if cl.lock != nil || cl.unsure == 0 {
		return nil
	}
	return &abandoned{
		release: release{c: cl.c, name: cl.name, uuid: cl.uuid, fields: sorted(cl.written())},
		late:    cl.unsure, until: cl.stamped.Add(cl.set.patience),
	}
}

// abandon returns the release for the lock after a successful one, or nil if it needs none. Before
// that it would release what the caller holds.
func (r *release) abandon() *abandoned {
	if r.err != nil || r.l.late <= 0 {
		return nil
	}
	return &abandoned{
		release: release{c: r.c, name: r.name, uuid: r.uuid, fields: r.fields},
		late:    r.l.late, until: r.l.lateUntil,
	}
}

// abandon releases what late attempts take: it tries again after ever longer pauses, until such a
// lock has expired.
func (c *Client) abandon(all ...*abandoned) {
	all = slices.DeleteFunc(all, func(a *abandoned) bool { return a == nil })
	if len(all) == 0 || c.open.Err() != nil {
		return
	}
	for _, a := range all {
		a.next, a.pause = time.Now(), firstPause
	}
	c.cleaner.add(c, all)
}

// cleaner has the abandoned locks of a client. Its goroutine runs while there are any.
type cleaner struct {
	mu    sync.Mutex
	queue []*abandoned  // the oldest first
	wake  chan struct{} // nil while no goroutine runs
}

func (cl *cleaner) add(c *Client, all []*abandoned) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.queue = append(cl.queue, all...)
	cl.queue = slices.Delete(cl.queue, 0, max(0, len(cl.queue)-maxAbandoned))
	if cl.wake == nil {
		cl.wake = make(chan struct{}, 1)
		go cl.run(c.open, c.store, cl.wake)
		return
	}
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

func (cl *cleaner) run(ctx context.Context, st *store, wake <-chan struct{}) {
	for {
		due, next := cl.due(ctx, time.Now())
		if next.IsZero() {
			return
		}
		clean(ctx, st, due)
		if len(due) > 0 {
			continue
		}
		select {
		case <-time.After(time.Until(next)):
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// due returns what is to be sent now, and when the next is: never, if next is zero. It takes those
// that are due soon along, to save transactions.
func (cl *cleaner) due(ctx context.Context, now time.Time) (due []*abandoned, next time.Time) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.queue = slices.DeleteFunc(cl.queue, func(a *abandoned) bool {
		return a.done || !now.Before(a.until) || ctx.Err() != nil
	})
	if len(cl.queue) == 0 {
		cl.queue, cl.wake = nil, nil
		return nil, next
	}
	for _, a := range cl.queue {
		if !a.next.Add(-a.pause / 8).After(now) {
			due = append(due, a)
		}
		if next.IsZero() || a.next.Before(next) {
			next = a.next
		}
	}
	return due, next
}

// clean sends each once.
func clean(ctx context.Context, st *store, due []*abandoned) {
	requests := make([]request, len(due))
	for i, a := range due {
		requests[i], a.done = a, true
	}
	for _, r := range st.round(ctx, attemptTimeout, requests) {
		r.(*abandoned).done = false
	}
	now := time.Now()
	for _, a := range due {
		a.next = now.Add(min(jitter(a.pause), a.until.Sub(now)))
		a.pause *= 2
	}
}
