// Package reaper removes locks that are due.
//
// A worker takes due locks from the table, reads each whole lock from etcd, makes the verdict
// on what it read, and logs both. Then it sends one transaction (package lockstore).
//
// Guaranteed, with the names of docs/safety.md:
//
//   - S3: while a hold is in force, or a probe is overdue, no removal is sent, and none before a probe
//     that began when the lock came due has shown that its holder could renew until then.
//   - S7: every removal is logged before it is sent. An unknown outcome is reported as
//     ambiguous, and the removal is tried again, which is safe because of the compares.
//   - S8: a lock without a readable deadline is never removed.
//
// Not guaranteed: that the table reflects a removal as soon as it is answered. Only the watch
// removes locks from the table.
package reaper

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Source is the source of due locks: a table.Table, which describes the methods.
type Source interface {
	Due() <-chan struct{}
	Take(ctx context.Context, limit int) ([]table.View, error)
	Postpone(ctx context.Context, d table.View, delay time.Duration) error
	Gone() <-chan []table.Gone
}

// Probe shows whether holders can renew: a probe.Probe, which describes the methods.
type Probe interface {
	Begin()
	Await(ctx context.Context, since time.Time) error
	Good() time.Time
	Lead() time.Duration
	Allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration)
}

// Pauses are the pauses of some locks: a pause.Pauses, which describes the methods.
type Pauses interface {
	For(name string) verdict.Pause
	Newest() int64
}

// Options are the options of New.
type Options struct {
	Store  lockstore.Store
	Source Source
	Rules  verdict.Rules
	// Signals returns the input of the holds. It is called before every transaction.
	Signals func() verdict.Signals
	// Leader reports whether this replica acts without the standby delay.
	Leader func() bool
	Probe  Probe
	Pauses Pauses
	// Records leaves records of the removals; nil leaves none. Replica is the identity of this replica in them.
	Records Records
	Replica string
	// Retention is how long the metrics show a removal.
	Retention time.Duration
	// Delay observes the time from due until the deletion of a lock was observed, in seconds.
	Delay interface{ Observe(float64) }
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Sleep blocks until the duration has passed or ctx is done. nil means a function that is
	// more precise than the timers of the runtime.
	Sleep  func(ctx context.Context, d time.Duration)
	Logger *slog.Logger
}

// Reaper removes locks that are due.
type Reaper struct {
	Options
	ledger  *Ledger
	tally   *tally
	gate    *gate
	rate    *rate.Limiter
	journal *journal
	// removing is the number of batches that are being removed.
	removing atomic.Int64
	recorder *recorder
	brakes   brakes
}

// New returns a Reaper that does nothing until Run is called.
func New(o Options) (*Reaper, error) {
	switch {
	case o.Store.KV == nil, o.Store.Layout.Prefix() == "", o.Store.RequestTimeout <= 0, o.Source == nil, o.Delay == nil,
		o.Logger == nil, o.Signals == nil, o.Leader == nil, o.Probe == nil, o.Pauses == nil:
		return nil, errors.New("reaper: Store, Source, Signals, Leader, Probe, Pauses, Delay and Logger are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
	limit := rate.Inf
	if o.Rules.RateLimit > 0 {
		limit = rate.Limit(o.Rules.RateLimit)
		o.Rules.BatchSize = max(1, int(min(o.Rules.RateLimit, float64(o.Rules.BatchSize)))) // those of a second at most
	}
	ledger := newLedger(o.Retention, o.Now)
	ledger.replica = o.Replica
	r := &Reaper{
		Options: o,
		ledger:  ledger,
		tally:   newTally(ledger),
		gate:    newGate(o.Rules, o.Signals, o.Logger),
		rate:    rate.NewLimiter(limit, o.Rules.BatchSize),
		journal: &journal{handler: o.Logger.Handler()},
		brakes:  brakes{streaks: make(map[string]streak)},
	}
	r.recorder = &recorder{Reaper: r, wake: make(chan struct{}, 1)}
	return r, nil
}

// Verdict returns the verdict on a lock at the present time, regardless of holds.
func (r *Reaper) Verdict(d table.View) verdict.Verdict {
	now := time.Now()
	passed := now.Sub(d.At)
	// The holder's clock was compared with our wall clock of before a step. Only a step back counts: the table, which
	// gets the lock back, computes its due again.
	wall := d.Wall.Add(passed)
	if stepped := r.Now(); wall.Sub(stepped) > r.Rules.ClockTolerance {
		wall = stepped
	}
	in := r.Rules.Inputs(&d.Lock, d.Observation.Later(passed), wall)
	in.Leader = r.Leader()
	if d.Token == 0 {
		in.OrphanDue = in.Now.Add(d.OrphanIn - passed)
	} else {
		in.Allow(r.Probe.Allowance, d.Written, now)
		in.Forced, in.MaxForced = r.braking(d.Name)
	}
	pause := r.Pauses.For(d.Name)
	in.PausedUntil, in.Pause = pause.Until, pause.Words
	return verdict.Decide(in)
}

// Holding returns the holds in force, in the order of their declaration.
func (r *Reaper) Holding() []api.Hold { return r.gate.holds() }

// Ledger returns the recent removals.
func (r *Reaper) Ledger() *Ledger { return r.ledger }

// drainTimeout is how long requests in flight may continue after the context of Run is done.
const drainTimeout = 2 * time.Second

// Run removes locks until ctx is done. It then waits until no transaction is in flight, and
// returns nil.
func (r *Reaper) Run(ctx context.Context) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(drainTimeout, cancel) })
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.confirm(gctx) })
	r.gate.open() // the metrics show none of the holds until the first reading, then also while no lock is due
	g.Go(func() error { return every(gctx, updateInterval, func() { r.gate.open() }) })
	g.Go(func() error { return r.journal.run(gctx) })
	if r.Rules.Mode != verdict.Off {
		w := newWorker(requests, r, g)
		g.Go(func() error { return w.run(gctx) })
	}
	g.Go(func() error { r.recorder.run(gctx, requests); return nil })
	err := g.Wait()
	r.recorder.flush(requests)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *Reaper) confirm(ctx context.Context) error {
	for {
		select {
		case gone := <-r.Source.Gone():
			for _, g := range gone {
				if a := r.tally.gone(g); a != nil {
					r.confirmed(ctx, a)
				}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// confirmed measures a removal after both its answer and its event came. If it is presumed only, it also logs, lists and
// counts it.
func (r *Reaper) confirmed(ctx context.Context, a *attempt) {
	if a.presumed {
		r.logOutcome(ctx, ends.presumed, a)
		r.count(a)
		r.tally.update(func(s *Stats) { ends.presumed.count(s, a) })
	}
	late := max(0, a.gone.At.Sub(a.verdict.Due))
	r.Delay.Observe(late.Seconds())
	r.Logger.Debug("forced unlock confirmed by the watch", "lock", a.record.LoggedName(),
		"revision", a.revision, "late", late)
}

// timerDelay is how late a timer of the runtime may fire on an idle system, on which the runtime
// waits in whole milliseconds.
const timerDelay = 2 * time.Millisecond

// sleep blocks for d, with a precision of some ten microseconds on Linux, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	end := time.Now().Add(d)
	select {
	case <-time.After(d - timerDelay):
		fineSleep(time.Until(end))
	case <-ctx.Done():
	}
}
