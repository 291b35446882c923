package table

import (
	"context"
	"errors"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Options are the options of New.
type Options struct {
	// DueIn returns the time until a lock with a deadline is due, negative if it is due
	// already. now is the daemon's wall clock. It is called for each change of a lock, and
	// must not block.
	DueIn func(l *lock.Lock, o verdict.Observation, now lock.Timestamp) time.Duration
	// Lead is how long before due Take returns a lock.
	Lead time.Duration
	// Window is the time over which Pressure counts the locks that came due.
	Window time.Duration
	// Tolerance is the maximum offset of a host's clock that Stats does not report.
	Tolerance time.Duration
	// OrphanGrace is how long an orphan must stay unmodified before it is due.
	OrphanGrace time.Duration
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// HoldDuration observes how long released locks were held, in seconds.
	HoldDuration interface{ Observe(float64) }
}

// Table is the table of locks. All methods may be called concurrently, and
// block until Run serves them.
type Table struct {
	core    *core
	ops     chan op
	gone    chan []Gone
	stopped chan struct{}
	// takers are the blocked calls of Take, in their order.
	takers []*taker
}

type op struct {
	do   func(*core)
	done chan struct{}
}

type taker struct {
	limit int
	got   chan Batch
}

// ErrStopped is returned by all methods once Run has returned.
var ErrStopped = errors.New("lock table stopped")

// New returns an empty table.
func New(o Options) (*Table, error) {
	if o.DueIn == nil || o.HoldDuration == nil || o.OrphanGrace <= 0 {
		return nil, errors.New("lock table: DueIn, HoldDuration and OrphanGrace are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Table{
		core:    newCore(o),
		ops:     make(chan op),
		gone:    make(chan []Gone),
		stopped: make(chan struct{}),
	}, nil
}

// stepCheck is the maximum time between comparisons of the clocks.
const stepCheck = time.Second

// Run owns the table until ctx is done.
func (t *Table) Run(ctx context.Context) error {
	defer close(t.stopped)
	timer := time.NewTimer(stepCheck)
	defer timer.Stop()
	for {
		t.serve()
		timer.Reset(min(stepCheck, t.core.sleep()))
		select {
		case <-ctx.Done():
			return nil
		case o := <-t.ops:
			o.do(t.core)
			close(o.done)
		case t.goneIfAny() <- t.core.gone:
			t.core.gone = nil
		case <-timer.C:
		}
		t.core.advance()
	}
}

// goneIfAny returns the channel, or nil, which blocks, if there is nothing to send.
func (t *Table) goneIfAny() chan []Gone {
	if len(t.core.gone) == 0 {
		return nil
	}
	return t.gone
}

// serve answers blocked calls of Take if locks are due.
func (t *Table) serve() {
	for len(t.takers) > 0 && t.core.ready.Len() > 0 {
		taker := t.takers[0]
		t.takers = t.takers[1:]
		taker.got <- t.core.take(taker.limit)
	}
}

func (t *Table) do(ctx context.Context, f func(*core)) error {
	o := op{do: f, done: make(chan struct{})}
	select {
	case t.ops <- o:
		<-o.done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.stopped:
		return ErrStopped
	}
}

// Apply applies events, which must be in the order of their revisions. It drops events up to
// the revision of the last listing without a watch. live must be set only if the watch had
// caught up before the events arrived: then their arrival is a clock observation.
func (t *Table) Apply(ctx context.Context, events []Event, live bool) error {
	return t.do(ctx, func(c *core) { c.apply(events, live) })
}

// Begin starts a listing at a revision. resync must be set if a watch continues during the
// listing. The table must then have every event up to that revision, and none after it.
func (t *Table) Begin(ctx context.Context, revision int64, resync bool) error {
	return t.do(ctx, func(c *core) { c.begin(revision, resync) })
}

// List adds locks to the listing in progress, in any order.
func (t *Table) List(ctx context.Context, locks []lock.Lock) error {
	return t.do(ctx, func(c *core) { c.list(locks) })
}

// End finishes the listing, and drops the locks that it did not contain.
func (t *Table) End(ctx context.Context) error {
	return t.do(ctx, (*core).end)
}

// Forget drops all locks, for example after a restore of etcd from a backup.
func (t *Table) Forget(ctx context.Context) error {
	return t.do(ctx, (*core).forget)
}

// Stats returns the aggregates, with up to overdue locks past their alert time and as many
// hosts with skewed clocks.
func (t *Table) Stats(ctx context.Context, overdue int) (Stats, error) {
	var s Stats
	err := t.do(ctx, func(c *core) { s = c.stats(overdue) })
	return s, err
}

// Page returns the first locks that match, ordered by name, and reports whether there are
// more. It scans all locks, so it is not for scrapes.
func (t *Table) Page(ctx context.Context, q Query) (items []Item, more bool, err error) {
	err = t.do(ctx, func(c *core) { items, more = c.page(q) })
	return items, more, err
}

// Get returns one lock.
func (t *Table) Get(ctx context.Context, name string) (item Item, found bool, err error) {
	err = t.do(ctx, func(c *core) {
		var e *entry
		if e, found = c.locks[name]; found {
			item = c.item(e, c.now())
		}
	})
	return item, found, err
}
