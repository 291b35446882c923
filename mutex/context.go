package mutex

import "context"

// Context returns a context that is derived from parent and canceled when the lock is lost or
// released. context.Cause tells why: a *LostError, ErrUnlocked, or the cause of parent.
//
// It is canceled before another can hold the lock, unless somebody removes the lock by hand;
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
