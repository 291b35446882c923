package mutex

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Lock is a lock that is held, until it is lost or released. It is safe for concurrent use.
type Lock struct {
	c         *Client
	name      string
	uuid      string
	token     int64
	cluster   uint64
	began     time.Time // of the attempt that took it
	goroutine uint64    // 0 if stacks are not written
	holds     []string  // the uuids of the locks that it was taken under
	observers observers

	// ctx ends when the lock is lost or released.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// late is how many attempts to take it may still be executed, and lateUntil the deadline of
	// the last of them.
	late      int
	lateUntil time.Time
	// renewing and releasing are held by the one who does.
	renewing, releasing chan struct{}
	// background are the goroutines of the lock.
	background sync.WaitGroup

	mu       sync.Mutex
	set      settings
	written  map[string]string // the fields that may have been written
	term     term
	alertAt  time.Time
	stacked  bool // for this alertAt
	guarded  bool
	asked    bool        // a question is to be answered
	mute     time.Time   // not before this
	saying   chan string // what OnAsk will return; of the answer only
	released bool
	left     bool // it was lost, and is released in the background
	unsure   int  // attempts of failed Unlocks that may have released it
	timer    *time.Timer
	err      error // of the last renewal
	tardy    bool  // that was late
	next     time.Time
}

// term is the time for which the lock was taken or renewed.
type term struct {
	began    time.Time
	length   time.Duration
	revision int64 // mod_revision of auto_unlock_at
}

// margin is how long before auto_unlock_at the lock counts as lost, so that the work can
// stop before another may start. The grace of the daemon adds to it.
func margin(patience time.Duration) time.Duration { return min(patience/10, 5*time.Second) }

// left returns how long the lock may still be used. The monotonic clock stops while
// the machine is suspended, and the wall clock may be set back, so the one that is ahead
// counts.
func (t term) left(now time.Time) time.Duration {
	return t.length - margin(t.length) - elapsed(t.began, now)
}

func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// newLock returns the lock that a claim has taken with an attempt that began at a time.
func newLock(cl *claim, began time.Time, cluster uint64, token, revision int64) *Lock {
	l := &Lock{
		c: cl.c, name: cl.name, uuid: cl.uuid, cluster: cluster, token: token, began: began, goroutine: cl.call.goroutine, holds: cl.holds, observers: cl.set.observers,
		renewing: make(chan struct{}, 1), releasing: make(chan struct{}, 1), set: cl.set, written: cl.written(),
		term:    term{began, cl.set.length(0), revision},
		alertAt: began.Add(cl.set.expect),
		next:    began.Add(pace(cl.set.patience)),
		late:    cl.unsure, lateUntil: cl.stamped.Add(cl.set.patience),
	}
	l.ctx, l.cancel = context.WithCancelCause(cl.c.cleaner.open)
	l.mu.Lock()
	l.timer = time.AfterFunc(guardDelay, l.tick)
	l.mu.Unlock()
	if cl.set.keep > 0 {
		l.c.keeper.add(l.c.store, l)
		context.AfterFunc(l.ctx, func() { l.c.keeper.remove(l) })
	}
	return l
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.name }

// UUID returns the uuid of this acquisition. Who knows it can unlock.
func (l *Lock) UUID() string { return l.uuid }

// Token returns the fencing token, which grows with each acquisition of the lock. A resource
// that refuses tokens lower than the highest it has seen is safe from a holder that was
// suspended and has lost its lock.
func (l *Lock) Token() int64 { return l.token }

// Cmp returns a comparison for a transaction in the same etcd, which then succeeds only if
// the lock is still held. If the client of New has a namespace, the transaction must have it,
// too.
func (l *Lock) Cmp() clientv3.Cmp {
	return l.c.store.is(l.name, l.uuid)
}

// Held returns nil if the lock is held, a *LostError if it is lost, ErrUnlocked after Unlock, and
// context.Canceled if etcd's client was closed before, without which nothing is seen or renewed. It compares the clocks
// with the deadline, so that a process that was suspended learns of the loss before it goes on. It sends nothing.
func (l *Lock) Held() error {
	l.check()
	if l.ctx.Err() != nil {
		return context.Cause(l.ctx)
	}
	return nil
}

// Deadline returns when the lock counts as lost unless it is renewed, which is a little
// before its auto_unlock_at: a tenth of the patience, and at most 5 seconds.
func (l *Lock) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term.began.Add(l.term.length - margin(l.term.length))
}

// Alive renews the lock: its deadlines are counted again from now. Expect, Patience and
// Status change what they say from then on. If etcd does not answer, Alive tries again until
// ctx ends or the lock is lost. A *LostError says that it is. After another error it is still
// held until its deadline: the old one or, if that is earlier, the new one.
func (l *Lock) Alive(ctx context.Context, opts ...Option) error {
	l.mu.Lock()
	set, err := l.set.with(inAlive, opts)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.Held(); err != nil {
		return err
	}
	ctx, cancel := l.join(ctx)
	defer cancel(nil)
	select {
	case l.renewing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.renewing }()
	r := &renewal{l: l, set: set, explicit: true}
	l.c.store.settle(ctx, set.timeout(), r)
	r.report()
	l.c.keeper.wakeUp() // the patience may be shorter
	if err := l.Held(); err != nil {
		return err
	}
	if r.err != nil {
		return fmt.Errorf("mutex: renew lock %q: %w", protocol.Clip([]byte(l.name), 200), r.err)
	}
	return nil
}

// renewal is the request that moves the deadlines of a lock.
type renewal struct {
	outcome
	l        *Lock
	set      settings
	explicit bool // also moves alert_at

	began time.Time
	term  term
	// events are those of its success, margin is theirs.
	events []EventKind
	margin float64
}

func (r *renewal) step() step {
	l, key := r.l, func(f protocol.Field) string { return r.l.c.store.key(r.l.name, f) }
	l.mu.Lock()
	defer l.mu.Unlock()
	r.began = time.Now()
	r.term = term{began: r.began, length: r.set.length(elapsed(l.began, r.began))}
	s := step{
		// An attempt that was not answered may be committed late, and must not bring back its
		// deadline after that of a later one.
		compares: []clientv3.Cmp{
			l.c.store.is(l.name, l.uuid),
			clientv3.Compare(clientv3.ModRevision(key(protocol.FieldAutoUnlockAt)), "=", l.term.revision),
		},
		then: []clientv3.Op{
			clientv3.OpPut(key(protocol.FieldAutoUnlockAt), timestamp(r.began, r.term.length)),
			clientv3.OpPut(key(protocol.FieldAliveAt), timestamp(r.began, 0)),
		},
		otherwise: l.c.store.read(l.name),
	}
	if r.explicit {
		s.then = append(s.then, clientv3.OpPut(key(protocol.FieldAlertAt), timestamp(r.began, r.set.expect)))
	}
	if l.ctx.Err() != nil {
		s.then = nil // Unlock no longer sees what would be written now
		return s
	}
	if r.term.left(r.began) < l.term.left(r.began) {
		// It may be committed although its answer is lost.
		l.term.began, l.term.length = r.term.began, r.term.length
		l.next = r.began.Add(pace(r.term.length))
		l.arm(r.began)
	}
	l.written["alive_at"] = ""
	if r.explicit && r.set.status != "" {
		l.written["status"] = ""
		s.then = append(s.then, clientv3.OpPut(key(protocol.FieldStatus), r.set.status))
	}
	return s
}

func (r *renewal) answered(a answer) bool {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.restored(a):
		l.lose(a)
	case a.succeeded:
		r.margin = 1 - float64(elapsed(l.term.began, time.Now()))/float64(l.term.length)
		if r.events = append(r.events, EventRenewed); r.margin < lateMargin && !l.tardy {
			r.events = append(r.events, EventLate)
		}
		l.tardy = r.margin < lateMargin
		r.term.revision = a.revision
		l.term, l.set, l.err = r.term, r.set, nil
		if r.explicit {
			l.alertAt, l.stacked = r.began.Add(r.set.expect), false
		}
		l.next = r.began.Add(pace(r.set.patience))
	default: // the lock is gone, or its deadline was moved by an attempt that was not answered, or by an operator
		if h, _ := l.c.store.holder(l.name, a.found); h.UUID != l.uuid {
			l.lose(a)
		} else {
			_, l.term.revision = l.c.store.deadline(l.name, a)
		}
	}
	return a.succeeded
}

// restored reports whether the answer is of an etcd that was restored since the lock was taken. Answers
// of transactions only tell this: a member that lags serves the others.
func (l *Lock) restored(a answer) bool { return a.cluster != l.cluster || a.revision < l.token }

// pace is the time between two renewals of a term: a third of it, and at most 100 seconds, since after an
// outage the daemon waits for renewals for five minutes at most.
func pace(length time.Duration) time.Duration { return min(length/3, 100*time.Second) }

// due is when the lock is to be renewed, where the client does that.
func (l *Lock) due(time.Time) (at, early time.Time, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next, l.next.Add(-pace(l.term.length) / 4), l.ctx.Err() != nil
}

// begin puts the next renewal off and returns this one, unless Alive or an earlier one is at it. The
// last one ends with the maximum hold.
func (l *Lock) begin() attempt {
	if l.Held() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = time.Now().Add(pace(l.term.length) / 4)
	if end := l.began.Add(l.set.keep); !l.term.began.Add(l.term.length).Before(end) {
		l.next = end
		return nil
	}
	select {
	case l.renewing <- struct{}{}:
		return &renewal{l: l, set: l.set}
	default:
		return nil
	}
}

func (r *renewal) timeout() time.Duration { return r.set.timeout() }

func (r *renewal) report() {
	for _, kind := range r.events {
		r.l.emit(Event{Kind: kind, Margin: r.margin})
	}
}

// ended makes the lock due again soon, if the renewal has failed.
func (r *renewal) ended() {
	r.report()
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	if r.l.err = r.err; r.err != nil {
		r.l.next = time.Now().Add(jitter(pace(r.l.term.length) / 8))
	}
	<-r.l.renewing
}
