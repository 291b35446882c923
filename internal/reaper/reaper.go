package reaper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Candidate is a lock that a source holds to be due.
type Candidate struct {
	lock.Lock
	// Sight is what our clocks knew of the lock At the time it was taken.
	Sight lock.Sight
	At    time.Time
	// Since is when an orphan had been left alone for long enough.
	Since time.Time
	// Attempts counts how often it was put back since it changed.
	Attempts int
}

// Gone tells that a candidate was seen to vanish.
type Gone struct {
	Name  string
	Token int64
	// Revision is that of the deletion, 0 where it is not known.
	Revision int64
	At       time.Time
}

// Park is the delay for Postpone that puts a candidate back until it changes.
const Park time.Duration = -1

// Source is where candidates come from.
type Source interface {
	// Take waits for candidates and returns at most most of them, up to Lead
	// before they are due.
	Take(ctx context.Context, most int) ([]Candidate, Pressure, error)
	// Pressure tells how much is due.
	Pressure(ctx context.Context) (Pressure, error)
	// Postpone puts a candidate back for a while; one that changed stays as it
	// is.
	Postpone(ctx context.Context, name string, token int64, delay time.Duration) error
	// Gone gives the candidates that vanished.
	Gone() <-chan []Gone
}

// Options are what a Reaper needs.
type Options struct {
	KV     clientv3.KV
	Layout lock.Layout
	Source Source
	Rules  Rules
	Holds  HoldRules
	// Signals are asked for whenever locks are about to be removed.
	Signals func() Signals
	// Leader tells whether this replica acts first.
	Leader func() bool
	// Credit returns for how long owners could not renew a lock whose last write
	// was seen at the time given.
	Credit func(seen time.Time) time.Duration
	// BatchSize is how many locks go in one transaction, Concurrency how many
	// transactions are under way at once.
	BatchSize, Concurrency int
	// Rate is how many locks are removed in a second at most; 0 for no limit.
	Rate float64
	// RequestTimeout bounds each request.
	RequestTimeout time.Duration
	// Retention is how long the ledger keeps a forced unlock.
	Retention time.Duration
	// Delay observes, in seconds, how long after it was due a lock was seen to
	// be gone.
	Delay interface{ Observe(float64) }
	// Now is the wall clock; nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger
}

// Reaper removes locks that are due.
type Reaper struct {
	Options
	store  Store
	ledger *Ledger
	tally  *tally
	gate   *gate
	rate   *rate.Limiter
}

// New returns a Reaper that does nothing until Run.
func New(o Options) (*Reaper, error) {
	switch {
	case o.KV == nil, o.Source == nil, o.Delay == nil, o.Logger == nil, o.Layout.Prefix() == "",
		o.Signals == nil, o.Leader == nil, o.Credit == nil:
		return nil, errors.New("reaper: KV, Source, Delay, Logger, Layout, Signals, Leader and Credit are required")
	case o.BatchSize < 1, o.BatchSize > maxTxnOps-4, o.Concurrency < 1, o.RequestTimeout <= 0:
		return nil, fmt.Errorf("reaper: batch size %d, concurrency %d or request timeout %s out of range",
			o.BatchSize, o.Concurrency, o.RequestTimeout)
	case o.Rate < 0, o.Holds.Settle < 0, o.Holds.Freshness <= 0, o.Holds.Storm.MinLocks < 0:
		return nil, errors.New("reaper: rate, settle, freshness or storm out of range")
	}
	if err := o.Rules.validate(); err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	limit := rate.Inf
	if o.Rate > 0 {
		limit = rate.Limit(o.Rate)
	}
	return &Reaper{
		Options: o,
		store:   Store{KV: o.KV, Layout: o.Layout, RequestTimeout: o.RequestTimeout},
		ledger:  newLedger(o.Retention, o.Now),
		tally:   newTally(),
		gate:    newGate(o.Holds, o.Signals, o.Logger),
		rate:    rate.NewLimiter(limit, o.BatchSize),
	}, nil
}

// Judge returns the verdict that would be made on a candidate now, holds apart.
func (r *Reaper) Judge(c Candidate) Verdict { return r.verdict(&c, &c.Lock) }

// verdict decides on what is known of a candidate now.
func (r *Reaper) verdict(c *Candidate, l *lock.Lock) Verdict {
	in := r.Rules.inputs(l, c.Sight.Later(time.Since(c.At)), r.Now())
	in.Leader = r.Leader()
	if l.Token == 0 {
		in.OrphanDue = c.Since.UTC()
	} else {
		in.Credit = r.Credit(c.At.Add(-c.Sight.Age))
	}
	return Decide(in)
}

// Holding returns the holds in force.
func (r *Reaper) Holding() map[Hold]HoldStatus { return r.gate.holds() }

// Ledger returns the recent forced unlocks.
func (r *Reaper) Ledger() *Ledger { return r.ledger }

// lastWords is how long requests under way may go on once Run was told to end.
const lastWords = 2 * time.Second

// Run removes locks until ctx is done, and returns nil when all transactions
// under way have ended.
func (r *Reaper) Run(ctx context.Context) error {
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.confirm(gctx) })
	g.Go(func() error { return r.gate.watch(gctx, r.Source.Pressure) })
	if !r.Rules.idle() {
		for range r.Concurrency {
			w := &worker{Reaper: r, requests: requests}
			g.Go(func() error { return w.run(gctx) })
		}
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// confirm takes what the watch has shown of the candidates' ends.
func (r *Reaper) confirm(ctx context.Context) error {
	for {
		select {
		case gone := <-r.Source.Gone():
			for _, g := range gone {
				r.finish(r.tally.gone(g))
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// finish accounts for a removal of which both the answer and the event are in.
func (r *Reaper) finish(a *attempt) {
	if a == nil {
		return
	}
	late := max(0, a.goneAt.Sub(a.verdict.Due))
	r.Delay.Observe(late.Seconds())
	r.Logger.Debug("forced unlock confirmed by the watch", "lock", lock.Clip([]byte(a.Name), maxLogName),
		"revision", a.result.revision, "late", late)
}
