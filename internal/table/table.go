// Package table keeps what is known of every lock.
//
// One goroutine (Table.Run) owns it; others reach it through a channel and get copies of
// aggregates, of pages and of single locks, never of everything. The table guarantees that nothing
// scans all locks on an event, on a tick or on a scrape: states change by an index-tracking heap
// ordered by each lock's next transition. It scans them at a listing, when the wall clock steps,
// when an outage has ended (Reschedule), and for pages, all those asked for at once in one scan
// that blocks the table for a quarter of a millisecond at a time.
//
// Due signals that locks are due, and Take returns each of them once, until the lock is
// modified or put back by Postpone. The table does not decide whether a lock may be removed, and no
// answer of a request removes a lock from it: only what was observed in etcd does.
package table

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options are the options of New.
type Options struct {
	// Rules decide when a lock is due.
	Rules verdict.Rules
	// Allowance is called for each change of a lock and must not block. Whenever more
	// becomes known, Reschedule is to be called.
	Allowance verdict.Allowance
	// Paused reports whether a pause or a brake keeps a lock, for Postpone; nil means none.
	// It must not block. Whenever it changes, Resume is to be called.
	Paused func(name string) bool
	// Released is called for each lock with a uuid that was deleted before its deadline, and must not block; nil
	// means not at all.
	Released func(name string, token int64)
	// Acquired is called for each acquisition that was observed, and must not block; nil means not at all.
	Acquired func(*protocol.Lock)
	// Lead returns how long before it is due Take returns a lock; nil means 0.
	Lead func() time.Duration
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Raw is a monotonic clock that nothing slews: that of Raw.
	Raw func() time.Duration
	// HoldDuration observes how long released locks were held, in seconds.
	HoldDuration interface{ Observe(float64) }
	// RenewalMargin observes the share of the patience that was left at each renewal.
	RenewalMargin interface{ Observe(float64) }
	// Logger has the begin and the end of a storm; nil means none.
	Logger *slog.Logger
}

// Table is the table of locks. All methods may be called concurrently, and
// block until Run serves them.
type Table struct {
	core    *core
	ops     chan func(*core)
	due     chan struct{}
	gone    chan []Gone
	changed chan struct{}
	stopped chan struct{}
}

// ErrStopped is returned by all methods once Run has returned.
var ErrStopped = errors.New("lock table stopped")

// New returns an empty table.
func New(o Options) (*Table, error) {
	if o.Allowance == nil || o.Raw == nil || o.HoldDuration == nil || o.RenewalMargin == nil || o.Rules.OrphanGrace <= 0 {
		return nil, errors.New("lock table: Allowance, Raw, HoldDuration, RenewalMargin and Rules.OrphanGrace are required")
	}
	if o.Lead == nil {
		o.Lead = func() time.Duration { return 0 }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Paused == nil {
		o.Paused = func(string) bool { return false }
	}
	if o.Acquired == nil {
		o.Acquired = func(*protocol.Lock) {}
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return &Table{
		core:    newCore(o),
		ops:     make(chan func(*core)),
		due:     make(chan struct{}),
		gone:    make(chan []Gone),
		changed: make(chan struct{}, 1),
		stopped: make(chan struct{}),
	}, nil
}

// stepCheck is the maximum time between comparisons of the clocks.
const stepCheck = time.Second

// Run owns the table until ctx is done.
func (t *Table) Run(ctx context.Context) error {
	defer close(t.due) // second: whoever it wakes finds the table stopped
	defer close(t.stopped)
	timer := time.NewTimer(stepCheck)
	defer timer.Stop()
	for {
		timer.Reset(min(stepCheck, t.core.sleep()))
		select {
		case <-ctx.Done():
			return nil
		case do := <-t.ops:
			do(t.core)
		case onlyIf(t.core.ready.Len() > 0, t.due) <- struct{}{}:
		case onlyIf(len(t.core.gone) > 0, t.gone) <- t.core.gone:
			t.core.gone = nil
		case <-timer.C:
		}
		t.core.advance()
		if t.core.changed {
			t.core.changed = false
			t.Notify()
		}
	}
}

// Notify makes Changed have a value, as something has changed that is shown with the locks. It never blocks: a change
// that nobody has received stands for those after it.
func (t *Table) Notify() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// Changed returns the channel that has a value if a lock, its state or its due changed since the
// last value was received from it.
func (t *Table) Changed() <-chan struct{} { return t.changed }

// onlyIf returns the channel, or nil, which blocks.
func onlyIf[T any](yes bool, ch chan T) chan T {
	if yes {
		return ch
	}
	return nil
}

func (t *Table) do(ctx context.Context, f func(*core)) error {
	done := make(chan struct{})
	select {
	case t.ops <- func(c *core) { f(c); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.stopped:
		return ErrStopped
	}
}

// Apply applies events that were observed live, in the order of their revisions: their arrival is a
// clock observation. Events up to the revision of the last listing are dropped.
func (t *Table) Apply(ctx context.Context, events []Event) error {
	return t.do(ctx, func(c *core) { c.apply(events, true) })
}

// Replay is Apply for events that were not observed live.
func (t *Table) Replay(ctx context.Context, events []Event) error {
	return t.do(ctx, func(c *core) { c.apply(events, false) })
}

// Reschedule computes the due of every lock again.
func (t *Table) Reschedule(ctx context.Context) error {
	return t.do(ctx, (*core).scheduleAll)
}

// Resume makes the locks available to Take again that Postpone put back because of a pause or a brake.
func (t *Table) Resume(ctx context.Context) error {
	return t.do(ctx, (*core).resume)
}

// Begin starts a listing at a revision. If a watch continues during it, the
// table must have been given every event up to that revision, and none after.
func (t *Table) Begin(ctx context.Context, revision int64, resync bool) error {
	return t.do(ctx, func(c *core) { c.begin(revision, resync) })
}

// List adds locks to the listing that was begun, in any order. It returns ErrOlder
// where they show a restore of etcd.
func (t *Table) List(ctx context.Context, locks []protocol.Lock) (older error) {
	err := t.do(ctx, func(c *core) { older = c.list(locks) })
	return cmp.Or(err, older)
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

// Get returns one lock.
func (t *Table) Get(ctx context.Context, name string) (v View, found bool, err error) {
	err = t.do(ctx, func(c *core) {
		var e *entry
		if e, found = c.locks[name]; found {
			v = c.view(e, c.now())
		}
	})
	return v, found, err
}
