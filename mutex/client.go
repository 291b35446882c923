package mutex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	maxAbandoned = 1000             // claims of a client that are released in the background; see the comment of the package
	tryTimeout   = 10 * time.Second // for which TryLock and TryLockAll wait for an answer of etcd, unless ctx says it
)

// Client takes locks in one etcd, under one prefix. It is safe for concurrent use.
type Client struct {
	store    *store
	watcher  clientv3.Watcher
	settings settings
	hostname string
	keeper   scheduler // of the locks that asked for it
	cleaner  scheduler // of what is abandoned
	stacks   stacks
	traces   traces
	leases   leases       // of those that wait
	plain    atomic.Int64 // until when it waits without tickets, for which it has no right
	sayPlain sync.Once
	deaf     atomic.Int64 // until when it does not try to read questions, for which it has no right
	sayDeaf  sync.Once
}

// New returns a client over one of etcd, which the caller closes after the last lock has been
// released. It sends nothing, and needs no closing itself. The options are the defaults of all
// its locks. It uses no other parts of etcd's client than KV, Watcher and Lease, which may be
// those of a namespace.
func New(etcd *clientv3.Client, opts ...Option) (*Client, error) {
	set, err := defaults().with(inNew, opts)
	if err != nil {
		return nil, err
	}
	layout, err := protocol.NewLayout(set.prefix)
	if err != nil {
		return nil, fmt.Errorf("mutex: %w", err)
	}
	set.audit = cmp.Or(set.audit, "/unlocker/audit"+set.prefix)
	set.ask = cmp.Or(set.ask, "/unlocker/ask"+set.prefix)
	set.waiters = cmp.Or(set.waiters, "/unlocker/waiters"+set.prefix)
	c := &Client{store: &store{kv: etcd.KV, layout: layout, outage: outage{etcd: etcd, observers: set.observers}}, watcher: etcd.Watcher, settings: set}
	open := etcd.Ctx()
	if open == nil { // as of a client without connections
		open = context.Background()
	}
	// That of a namespace, and any other that is not etcd's, is the only one.
	c.store.outage.own = etcd.ActiveConnection() != nil && reflect.TypeOf(etcd.Watcher) == reflect.TypeOf(clientv3.NewWatchFromWatchClient(nil, nil))
	c.leases = leases{etcd: etcd, open: open, granting: make(chan struct{}, 1)}
	c.keeper = scheduler{open: open, overlap: true}
	c.cleaner = scheduler{open: open, most: maxAbandoned}
	c.hostname, _ = os.Hostname()
	return c, nil
}

// Lock takes a lock and waits for it while another holds it, until ctx ends. Then the error
// is a *HeldError that says who holds it. It waits for etcd, too: a warning says so after ten seconds (see
// Observe), and the error is then ErrUnreachable. Afterwards ctx has nothing to do with the lock any more: release it
// with Unlock.
//
// Waiters get the lock in the order in which they came; see WaitersPrefix. Waiting sends hardly any requests while the lock
// is held, and ends when it is released.
//
// An attempt that etcd executed late, as after an outage, may have taken a lock that is lost already: see Held.
//
// If there is an error, etcd may still execute an attempt that it has not answered, and take the
// lock. It is then released in the background, while etcd's client is open. Otherwise it stays
// until its deadline, as do the oldest of more than 1000.
func (c *Client) Lock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.lock(ctx, name, opts)
}

// TryLock takes a lock or returns a *HeldError at once if another holds it. If etcd does not
// answer it tries again until ctx ends or, if ctx has no deadline, for ten seconds. The error is then ErrUnreachable.
func (c *Client) TryLock(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	return c.lock(ctx, name, append(opts[:len(opts):len(opts)], Wait(0)))
}

func (c *Client) lock(ctx context.Context, name string, opts []Option) (*Lock, error) {
	set, err := c.resolve(opts)
	if err != nil {
		return nil, err
	}
	cl, err := c.claim(name, set, c.traces.caller(set.trace))
	if err != nil {
		return nil, err
	}
	if outer, ok := FromContext(ctx); ok {
		cl.holds = append(slices.Clip(outer.holds), outer.uuid)
	}
	defer func() {
		c.abandon(cl.abandon()...)
		cl.emit(ctx)
	}()
	wait := set.wait
	if _, bounded := ctx.Deadline(); wait == 0 && !bounded {
		wait = tryTimeout
	}
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if set.wait == 0 {
		c.take(ctx, set, cl)
		return cl.lock, cl.failure(nil)
	}
	err = c.await(ctx, cl)
	return cl.lock, err
}

// resolve returns the settings of a lock.
func (c *Client) resolve(opts []Option) (settings, error) {
	set, err := c.settings.with(inLock, opts)
	if err != nil {
		return set, err
	}
	if _, err := protocol.ParseTimestamp([]byte(timestamp(time.Now(), set.patience))); err != nil {
		return set, fmt.Errorf("mutex: the clock of this host is wrong: %w", err)
	}
	return set.resolve()
}

// take tries each claim once, and those that are held under the claim's identity twice. It
// reads who holds the others.
func (c *Client) take(ctx context.Context, set settings, claims ...*claim) {
	c.settle(ctx, set, claims)
	c.describe(ctx, set, claims...)
	if set.identity == "" {
		return
	}
	var freed []*claim
	for _, cl := range claims {
		if cl.holder.identity == set.identity && c.evict(ctx, cl) { // as it was read of those that are held
			cl.fair = false
			freed = append(freed, cl)
		}
	}
	c.settle(ctx, set, freed)
}

// describe reads who holds the locks of failed claims. Without an answer only the uuid and
// the token of each are known.
func (c *Client) describe(ctx context.Context, set settings, claims ...*claim) {
	var requests []request
	for _, cl := range claims {
		if cl.err == nil && cl.lock == nil {
			requests = append(requests, &reading{cl: cl})
		}
	}
	c.store.settle(ctx, set.timeout(), requests...)
}

// settle tries each claim. One of a slot reads before which are free, unless it has been waiting.
func (c *Client) settle(ctx context.Context, set settings, claims []*claim) {
	var reads, requests []request
	for _, cl := range claims {
		if cl.err = nil; len(cl.names) > 1 && cl.ticket == 0 {
			reads = append(reads, &position{cl: cl})
		}
	}
	c.store.settle(ctx, set.timeout(), reads...)
	for _, r := range reads {
		p := r.(*position)
		p.cl.err = p.err
	}
	for _, cl := range claims {
		if cl.err == nil {
			requests = append(requests, cl)
		}
	}
	c.store.settle(ctx, set.timeout(), requests...)
}

// WithLock takes a lock as Lock does, calls f, and releases the lock. The context of f is
// derived from ctx and canceled when the lock is lost, with the *LostError as its cause; see
// Lock.Context. FromContext returns the lock from it. The error is that of f, and that of the
// release: a *LostError if the lock was lost, even if f has not noticed, or so early that f was not called. If another
// removed the lock, WithLock waits up to two seconds for the record that says who, unless ctx has ended.
func (c *Client) WithLock(ctx context.Context, name string, f func(context.Context) error, opts ...Option) (err error) {
	l, err := c.lock(ctx, name, opts)
	if err != nil {
		return err
	}
	defer func() {
		if lost := (*LostError)(nil); errors.As(l.Held(), &lost) {
			lost.Removal(ctx) // which the text of the error then has
		}
		release := l.Unlock(context.WithoutCancel(ctx))
		if !errors.Is(err, release) {
			err = errors.Join(err, release)
		}
	}()
	if lost := l.Held(); lost != nil { // it was taken by an attempt that was executed late
		return lost
	}
	return f(l.Context(ctx))
}

// Lead elects a leader: it waits for the lock as Lock does, calls f while it holds it, with KeepAlive(Forever)
// unless the options say otherwise, releases it when f returns, and begins again. The context of f is that of
// WithLock: f must return soon after it has ended, as others lead then. After a loss this process is a candidate
// again, whatever f has returned. After f has returned nil it is one again 1 to 3 seconds later, so that another
// may lead.
//
// It returns any other error of f, any of Lock but ErrNoSpace, and the cause of ctx once that has ended. Patience
// is how long nobody leads after a crash of the leader.
func (c *Client) Lead(ctx context.Context, name string, f func(context.Context) error, opts ...Option) error {
	opts = append([]Option{KeepAlive(Forever)}, opts...)
	for ctx.Err() == nil {
		led := false
		lead := func(ctx context.Context) error { led = true; return f(ctx) }
		switch err := c.WithLock(ctx, name, lead, opts...); {
		case errors.Is(err, ErrLost):
		case err == nil, errors.Is(err, ErrNoSpace):
			_ = rest(ctx, jitter(longestPause))
		case led, ctx.Err() == nil:
			return err
		}
	}
	return context.Cause(ctx)
}

// TryLockAll takes of several locks those that are free, without waiting. It returns those
// it has taken and, for the others, who holds them, each in the order of the names. The error
// says why neither is known of the rest; the locks returned with it are held. It is not
// atomic: it takes about a hundred locks with each transaction. If etcd does not answer it tries again as TryLock
// does, but not for longer than the patience.
func (c *Client) TryLockAll(ctx context.Context, names []string, opts ...Option) (taken []*Lock, held []*HeldError, err error) {
	set, err := c.resolve(opts)
	if err != nil {
		return nil, nil, err
	}
	at, seen := c.traces.caller(set.trace), make(map[string]bool, len(names))
	claims := make([]*claim, len(names))
	for i, name := range names {
		if claims[i], err = c.claim(name, set, at); err != nil {
			return nil, nil, err
		}
		if seen[name] {
			return nil, nil, fmt.Errorf("mutex: lock %q is named twice", protocol.Clip([]byte(name), 200))
		}
		seen[name] = true
	}
	limit := set.patience
	if _, bounded := ctx.Deadline(); !bounded {
		limit = min(limit, tryTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c.take(ctx, set, claims...)
	var errs []error
	var late []*abandoned
	for _, cl := range claims {
		late = append(late, cl.abandon()...)
		var other *HeldError
		switch err := cl.failure(nil); {
		case err == nil:
			cl.emit(ctx)
			taken = append(taken, cl.lock)
		case errors.As(err, &other):
			held = append(held, other)
		default:
			errs = append(errs, err)
		}
	}
	c.abandon(late...)
	return taken, held, joined(errs)
}

// UnlockAll releases several locks of the client as Unlock does, in as few transactions as
// possible.
func (c *Client) UnlockAll(ctx context.Context, locks ...*Lock) error {
	return unlock(ctx, c, locks)
}
