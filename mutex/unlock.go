package mutex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Unlock releases the lock. First it cancels the contexts of the lock, with ErrUnlocked as
// their cause. If etcd does not answer it tries again until ctx ends, and at most for the
// patience; a context that has already ended permits one attempt of up to five seconds. After
// an error it may be called again. Unlock of a released lock does nothing.
//
// If the lock was lost, Unlock returns the *LostError at once, and what etcd still has of it is deleted in
// the background, while etcd's client is open. Only keys of this acquisition are deleted, never those of
// another holder.
func (l *Lock) Unlock(ctx context.Context) error { return unlock(ctx, l.c, []*Lock{l}) }

func unlock(ctx context.Context, c *Client, locks []*Lock) error {
	// In one order, so that two callers with the same locks do not wait for each other.
	locks = slices.Clone(locks)
	slices.SortFunc(locks, func(a, b *Lock) int { return strings.Compare(a.uuid, b.uuid) })
	locks = slices.Compact(locks)
	var requests []request
	var releases []*release
	var errs []error
	patience := minPatience
	for _, l := range locks {
		l.check()
		l.cancel(ErrUnlocked)
	}
	for _, l := range locks {
		if err := l.turn(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		defer func() { <-l.releasing }()
		l.mu.Lock()
		l.timer.Stop()
		var lost *LostError
		switch {
		case l.released:
		case errors.As(context.Cause(l.ctx), &lost):
			l.released = true
			lost.explanation.end()
			errs = append(errs, lost)
			l.cleanUp()
		default:
			r := l.release()
			r.unsure = l.unsure
			releases, requests = append(releases, r), append(requests, r)
			patience = max(patience, l.set.patience)
		}
		l.mu.Unlock()
	}
	c.release(ctx, patience, requests)
	var late []*abandoned
	for _, r := range releases {
		if err := r.ended(); err != nil {
			errs = append(errs, err)
		}
		if r.err == nil {
			late = append(late, r.abandon(false))
		}
	}
	c.abandon(late...)
	return joined(errs)
}

// turn waits until no other Unlock is at it.
func (l *Lock) turn(ctx context.Context) error {
	select {
	case l.releasing <- struct{}{}: // also if ctx has ended
	default:
		select {
		case l.releasing <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("mutex: unlock %q, which another Unlock does: %w", protocol.Clip([]byte(l.name), 200), context.Cause(ctx))
		}
	}
	return nil
}

func (c *Client) release(ctx context.Context, patience time.Duration, releases []request) {
	timeout := min(attemptTimeout, patience)
	if ctx.Err() != nil {
		c.store.round(context.WithoutCancel(ctx), timeout, releases)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.store.settle(ctx, timeout, releases...)
}

// release is the request that deletes the keys of a lock, if it is still there.
type release struct {
	outcome
	c          *Client
	name, uuid string
	fields     []string
	ticket     string // deleted in any case, if there is one
	l          *Lock  // nil if no Lock was returned
	other      answer
}

// release returns the request. It is called with the mutex held.
func (l *Lock) release() *release {
	return &release{c: l.c, name: l.name, uuid: l.uuid, fields: sorted(l.written), l: l}
}

func (r *release) step() step {
	s := step{
		compares:  []clientv3.Cmp{r.c.store.is(r.name, r.uuid)},
		then:      make([]clientv3.Op, 0, len(r.fields)),
		otherwise: []clientv3.Op{clientv3.OpGet(r.c.store.key(r.name, protocol.FieldUUID))},
	}
	for _, f := range r.fields {
		s.then = append(s.then, clientv3.OpDelete(r.c.store.layout.Key(r.name, f)))
	}
	if r.ticket != "" {
		s.then, s.otherwise = append(s.then, clientv3.OpDelete(r.ticket)), append(s.otherwise, clientv3.OpDelete(r.ticket))
	}
	return s
}

func (r *release) answered(a answer) bool {
	r.other = a
	return true
}

// ended returns the error of an Unlock.
func (r *release) ended() error {
	r.l.mu.Lock()
	r.l.released, r.l.unsure = r.err == nil, r.unsure
	r.l.mu.Unlock()
	if r.err != nil {
		return fmt.Errorf("mutex: unlock %q: %w", protocol.Clip([]byte(r.name), 200), r.err)
	}
	r.l.background.Wait()
	took := elapsed(r.l.began, time.Now())
	if !r.l.restored(r.other) && (r.other.succeeded || r.unsure > 0) { // by an attempt that was not answered
		r.l.emit(Event{Kind: EventReleased, Took: took})
		return nil
	}
	lost := r.l.explain(r.l.why(r.other), explainTimeout/4)
	lost.Removal(context.Background())
	r.l.emit(Event{Kind: EventLost, Took: took, Err: lost})
	return lost
}

// lose ends the lock, as its uuid is not the one that etcd has, and begins to find out who removed it.
func (l *Lock) lose(a answer) { l.end(l.explain(l.why(a), explainTimeout)) }

func (l *Lock) why(a answer) *LostError {
	e := &LostError{Name: l.name, UUID: l.uuid, Reason: ErrForced}
	h, ok := l.c.store.holder(l.name, a.found)
	switch {
	case a.cluster != 0 && l.restored(a):
		e.Reason = ErrRestored
	case ok:
		e.Reason, e.Holder = ErrTaken, h
	}
	return e
}

// abandoned is the release of a lock that nobody holds any more, or ever did: attempts to take it
// that were not answered may be executed late. It is done when it has deleted as many as those.
type abandoned struct {
	release
	held  bool      // the lock itself is to be released, until that was answered
	late  int       // attempts that may still take the lock
	until time.Time // the deadline of the last of them
	next  time.Time
	pause time.Duration
	done  bool
}

func (a *abandoned) answered(got answer) bool {
	if got.succeeded && !a.held && a.fields != nil {
		a.late--
	}
	a.held = false
	a.done = a.late <= 0
	return a.done
}

func (a *abandoned) due(time.Time) (at, early time.Time, over bool) {
	return a.next, a.next.Add(-a.pause / 8), a.done
}

func (a *abandoned) begin() attempt         { return a }
func (a *abandoned) timeout() time.Duration { return attemptTimeout }

func (a *abandoned) ended() {
	if a.err != nil {
		a.done = classify(a.err) != ambiguous
	}
	now := time.Now()
	a.done = a.done || !a.held && !now.Before(a.until) // what is executed late has expired
	wait := jitter(a.pause)
	if a.held {
		wait = min(wait, longestPause)
	} else {
		wait = min(wait, a.until.Sub(now))
	}
	a.next, a.pause = now.Add(wait), 2*wait // not more: it may be sent early, again and again
}

// abandon returns the releases for what the claim has left or its attempts may do late: put its ticket, and take the lock if
// the claim has failed, or other slots.
func (cl *claim) abandon() (all []*abandoned) {
	cl.doubts[cl.name] = cl.unsure
	for name, late := range cl.doubts {
		a := &abandoned{release: release{c: cl.c, name: name, uuid: cl.uuid}, late: late, until: cl.stamped.Add(cl.set.patience)}
		if cl.queued && (late > 0 || cl.lock == nil) {
			a.ticket, _, _ = cl.tickets()
		}
		if late > 0 && (cl.lock == nil || cl.lock.name != name) {
			a.fields = sorted(cl.written())
		}
		if a.fields != nil || a.ticket != "" {
			all = append(all, a)
		}
	}
	return all
}

// abandon returns the release for a lock that is lost and still held in etcd, or that was released, or
// nil if it needs none. Before that it would release what the caller holds.
func (r *release) abandon(held bool) *abandoned {
	if !held && r.l.late <= 0 {
		return nil
	}
	return &abandoned{
		release: release{c: r.c, name: r.name, uuid: r.uuid, fields: r.fields},
		held:    held, late: r.l.late, until: r.l.lateUntil,
	}
}

// abandon releases what late attempts take: it tries again after ever longer pauses, and last when such
// a lock expires.
func (c *Client) abandon(all ...*abandoned) {
	var tasks []task
	for _, a := range all {
		if a != nil {
			a.next, a.pause = time.Now(), firstPause
			tasks = append(tasks, a)
		}
	}
	if len(tasks) > 0 {
		c.cleaner.add(c.store, tasks...)
	}
}
