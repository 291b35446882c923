package mutex

import (
	"context"
	"sync"
	"time"
)

// keeper renews the locks of a client that asked for it, together. Its goroutine runs while
// there are any.
type keeper struct {
	mu    sync.Mutex
	locks map[*Lock]struct{}
	wake  chan struct{}
	stop  context.CancelFunc // nil while no goroutine runs
	next  time.Time          // when it looks again
}

func (k *keeper) add(l *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop == nil {
		k.locks, k.wake = map[*Lock]struct{}{}, make(chan struct{}, 1)
		var ctx context.Context
		ctx, k.stop = context.WithCancel(context.Background())
		go k.run(ctx, l.c.store, k.wake)
	}
	if k.locks[l] = struct{}{}; l.next.Before(k.next) {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	context.AfterFunc(l.ctx, func() { k.remove(l) })
}

func (k *keeper) remove(l *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if delete(k.locks, l); len(k.locks) == 0 {
		k.stop()
		k.stop = nil
	}
}

func (k *keeper) run(ctx context.Context, st *store, wake chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
		due, next := k.due(time.Now())
		if len(due) > 0 {
			renew(ctx, st, due, wake)
			next = time.Now()
		}
		timer.Reset(time.Until(next))
	}
}

// due returns the locks to renew now, and when the next is. It takes those that are due soon
// along, to save transactions.
func (k *keeper) due(now time.Time) (due []*Lock, next time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	next = now.Add(time.Hour)
	for l := range k.locks {
		at, early := l.renewal()
		if at.Before(next) {
			next = at
		}
		if early.Before(now) {
			due = append(due, l)
		}
	}
	if k.next = next; next.After(now) {
		return nil, next
	}
	return due, now
}

// renewal returns when the lock is to be renewed, and from when on it may be.
func (l *Lock) renewal() (at, early time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next, l.next.Add(-l.set.patience / 12)
}

// renew sends the renewals of the locks once, and does not wait for the answer: other locks may
// be due before it comes. Those that fail are due again soon.
func renew(ctx context.Context, st *store, due []*Lock, wake chan<- struct{}) {
	var renewals []*renewal
	for _, l := range due {
		if l.Held() != nil || !l.keep() {
			continue
		}
		select {
		case l.renewing <- struct{}{}:
		default:
			continue // Alive or an earlier renewal is at it
		}
		l.mu.Lock()
		renewals = append(renewals, &renewal{l: l, set: l.set})
		l.mu.Unlock()
	}
	if len(renewals) == 0 {
		return
	}
	go func() {
		send(ctx, st, renewals)
		select {
		case wake <- struct{}{}:
		default:
		}
	}()
}

func send(ctx context.Context, st *store, renewals []*renewal) {
	timeout, requests := attemptTimeout, make([]request, len(renewals))
	for i, r := range renewals {
		timeout, requests[i] = min(timeout, r.set.timeout()), r
	}
	st.round(ctx, timeout, requests)
	for _, r := range renewals {
		r.l.mu.Lock()
		if r.l.err = r.err; r.err != nil {
			r.l.next = time.Now().Add(jitter(r.set.patience / 24))
		}
		r.l.mu.Unlock()
		<-r.l.renewing
	}
}

// keep puts the next renewal off and reports whether this one is needed: the last one ends
// with the maximum hold.
func (l *Lock) keep() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.next = now.Add(l.set.patience / 12)
	end := l.began.Add(l.set.keep)
	if !l.term.began.Add(l.term.length).Before(end) {
		l.next = end
		return false
	}
	return true
}
