package mutex

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// guardDelay is how long a lock is held before its key is watched: most locks are
	// released before, and save the watch.
	guardDelay = 100 * time.Millisecond
	// checkInterval is how often the wall clock is compared, which the timers of a process
	// do not follow.
	checkInterval = time.Second
)

// check ends the lock if its deadline is near.
func (l *Lock) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(time.Now())
}

func (l *Lock) expire(now time.Time) {
	if l.term.left(now) > 0 {
		return
	}
	e := &LostError{Name: l.name, UUID: l.uuid, Reason: ErrDeadline, Err: l.err}
	switch {
	case errors.Is(l.err, ErrNoSpace):
		e.Reason = ErrNoSpace
	case errors.Is(l.err, ErrUnreachable), l.err != nil && classify(l.err) == ambiguous:
		e.Reason = ErrUnreachable
	case l.set.keep > 0 && elapsed(l.began, now) >= l.set.keep-margin(l.term.length):
		e.Err = errMaxHold
	}
	l.end(e)
}

// end ends the lock with a loss, unless another loss or Unlock came first.
func (l *Lock) end(e *LostError) {
	if l.cancel(e); !errors.Is(context.Cause(l.ctx), e) {
		e.explanation.end() // nobody gets it
		return
	}
	go l.emit(Event{Kind: EventLost, Took: elapsed(l.began, time.Now()), Err: e})
}

func (l *Lock) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.expire(now); l.ctx.Err() != nil {
		l.leave(now)
		return
	}
	if !l.guarded {
		l.guarded = true
		l.start(l.guard)
		l.start(l.listen)
	}
	if l.asked && !now.Before(l.mute) {
		l.asked, l.mute = false, now.Add(maxDuration)
		l.start(l.answerQuestion)
	}
	if l.goroutine != 0 && !l.stacked && elapsed(l.began, now) >= l.alertAt.Sub(l.began) {
		l.stacked = true
		l.start(func() { l.write(map[protocol.Field]string{protocol.FieldStack: l.c.stacks.of(l.goroutine)}) })
	}
	l.arm(now)
}

// leave releases in the background a lock that was lost since etcd failed: not before its own deadline, as
// its work may still be stopping. A lock that its holder has not renewed stays, for the daemon, which alerts.
func (l *Lock) leave(now time.Time) {
	if cause := context.Cause(l.ctx); !errors.Is(cause, ErrUnreachable) && !errors.Is(cause, ErrNoSpace) {
		return
	}
	if left := l.term.began.Add(l.term.length).Sub(now); left > 0 {
		l.timer.Reset(left)
		return
	}
	l.cleanUp()
}

// cleanUp begins to release a lock that was lost, once.
func (l *Lock) cleanUp() {
	if !l.left {
		l.left = true
		l.c.abandon(l.release().abandon(true))
	}
}

// start runs what Unlock waits for.
func (l *Lock) start(work func()) {
	l.background.Add(1)
	go func() {
		defer l.background.Done()
		work()
	}()
}

// arm sets the timer for what comes next.
func (l *Lock) arm(now time.Time) {
	next := min(l.term.left(now), checkInterval)
	if !l.guarded {
		next = min(next, l.began.Add(guardDelay).Sub(now))
	}
	if l.asked {
		next = min(next, l.mute.Sub(now))
	}
	l.timer.Reset(next)
}

// guard watches the uuid until the lock is lost or released.
func (l *Lock) guard() {
	l.follow(l.c.store.key(l.name, protocol.FieldUUID), l.token, func(uuid *mvccpb.KeyValue) {
		switch {
		case uuid == nil:
			l.lose(answer{})
		case string(uuid.Value) != l.uuid:
			l.lose(answer{found: map[string]*mvccpb.KeyValue{string(uuid.Key): uuid}})
		}
	}, func(error) bool { return false })
}

// follow calls see with each change of a key from a revision on, nil being its deletion, until the lock is lost or
// released. If the revision is 0, and after a watch broke, it reads the key. Where it cannot, over reports whether to
// give up.
func (l *Lock) follow(key string, from int64, see func(*mvccpb.KeyValue), over func(error) bool) {
	for pause := firstPause; l.ctx.Err() == nil; pause = min(2*pause, longestPause) {
		if from > 0 && l.watch(key, from, see) {
			pause = firstPause
		}
		_ = rest(l.ctx, jitter(pause))
		revision, err := l.look(key, see)
		if err == nil {
			from = revision + 1
		} else if over(err) {
			return
		}
	}
}

// watch watches a key until the watch or the lock ends. It reports whether etcd showed anything.
func (l *Lock) watch(key string, from int64, see func(*mvccpb.KeyValue)) (healthy bool) {
	w := l.c.watcher.Watch(clientv3.WithRequireLeader(l.ctx), key, clientv3.WithRev(from), clientv3.WithCreatedNotify())
	for resp := range w { // it is closed after an error
		if resp.Err() != nil {
			return healthy
		}
		healthy = true
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision < from:
			case ev.Type == clientv3.EventTypeDelete:
				see(nil)
			default:
				see(ev.Kv)
			}
		}
	}
	return healthy
}

func (l *Lock) look(key string, see func(*mvccpb.KeyValue)) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, attemptTimeout)
	defer cancel()
	resp, err := l.c.store.kv.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	see(append(resp.Kvs, nil)[0])
	return resp.Header.Revision, nil
}

// Context returns a context that is derived from parent and canceled when the lock is lost or
// released. context.Cause tells why: a *LostError, ErrUnlocked, or the cause of parent.
//
// It is canceled before another can hold the lock, unless the lock is removed by hand;
// then as soon as this process sees that. Timers fire late in a process that was suspended,
// so its Err and Done compare the clocks themselves: work that looks at either of them before
// each step does not take a step too many. Contexts derived from it do not do that.
func (l *Lock) Context(parent context.Context) context.Context {
	ctx, cancel := l.join(parent)
	return &lockContext{ctx, l, cancel}
}

// join returns a context that ends with parent and with the lock.
func (l *Lock) join(parent context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx, cancel
}

type lockContext struct {
	context.Context
	l      *Lock
	cancel context.CancelCauseFunc
}

type lockKey struct{}

// check cancels the context if the lock is lost.
func (c *lockContext) check() {
	if c.l.Held() != nil {
		c.cancel(context.Cause(c.l.ctx))
	}
}

func (c *lockContext) Err() error {
	c.check()
	return c.Context.Err()
}

func (c *lockContext) Done() <-chan struct{} {
	c.check()
	return c.Context.Done()
}

func (c *lockContext) Value(key any) any {
	if key == (lockKey{}) {
		return c.l
	}
	return c.Context.Value(key)
}

// FromContext returns the lock that ctx belongs to, if it is or is derived from one of
// Lock.Context or WithLock.
func FromContext(ctx context.Context) (l *Lock, ok bool) {
	l, ok = ctx.Value(lockKey{}).(*Lock)
	return l, ok
}
