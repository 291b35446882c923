package scan

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options are the options of New.
type Options struct {
	Client *clientv3.Client
	Layout protocol.Layout
	Table  *table.Table
	// Tolerance is how long the watch may stand still before what it shows next does
	// not count as observed live.
	Tolerance time.Duration
	// Freshness is how long a watch may show neither an event nor a progress
	// notice.
	Freshness time.Duration
	// Resync is the time between full listings during a watch; 0 means none.
	Resync time.Duration
	// RequestTimeout limits each request, and the wait for each part of a listing.
	RequestTimeout time.Duration
	// Explain adds the missing permission to an error of etcd.
	Explain func(error) error
	// Changed is called after each listing and each failure, which Status then shows; nil means not.
	// It must not block.
	Changed func()
	Logger  *slog.Logger
}

// Scanner keeps a table up to date with etcd.
type Scanner struct {
	Options
	status  view
	history history
	// lastCurrent is when the table was last known to be current: that of the last
	// response of a watch that was live. Run owns it while no watch is up, then the
	// watch does, under applying.
	lastCurrent time.Time
}

// New returns a Scanner that does nothing until Run is called.
func New(o Options) (*Scanner, error) {
	switch {
	case o.Client == nil, o.Table == nil, o.Logger == nil, o.Explain == nil, o.Layout.Prefix() == "":
		return nil, errors.New("scan: Client, Table, Logger, Explain and Layout are required")
	case o.Freshness <= 0, o.Tolerance <= 0, o.RequestTimeout <= 0, o.Resync < 0:
		return nil, errors.New("scan: Freshness, Tolerance and RequestTimeout must be positive, Resync not negative")
	}
	return &Scanner{Options: o, status: newView(o.Changed), history: history{seed: maphash.MakeSeed()}}, nil
}

// The backoff between sessions begins at minBackoff and doubles up to maxBackoff, with jitter.
// After a healthy session it begins again.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Run lists and watches until ctx is done, and then returns nil. No failure of etcd ends it. It
// returns an error only if the table has stopped.
func (s *Scanner) Run(ctx context.Context) error {
	backoff := minBackoff
	for {
		healthy, err := s.session(ctx)
		s.status.disconnected()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, table.ErrStopped) {
			return err
		}
		if healthy {
			backoff = minBackoff
		}
		pause, err := s.recover(ctx, err, backoff)
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// recover logs and counts a failure, and returns how long to wait before the next session.
func (s *Scanner) recover(ctx context.Context, failure error, backoff time.Duration) (time.Duration, error) {
	reason, failure := classify(failure), s.Explain(failure)
	warn := s.status.failed(reason, failure)
	level := slog.LevelDebug
	if warn {
		level = slog.LevelWarn
	}
	s.Logger.Log(ctx, level, api.LogWatchFailed, "reason", string(reason), "error", failure)
	switch reason {
	case ReasonCompacted:
		return 0, nil // etcd is healthy: relist at once
	case ReasonRegressed:
		// What is known belongs to another history and must not be compared with
		// this one.
		s.history.forget()
		s.status.historyChanged()
		if err := s.Table.Forget(ctx); err != nil && ctx.Err() == nil {
			return 0, err
		}
	}
	return backoff/2 + rand.N(backoff), nil
}

// session lists once and watches until the watch fails. It is healthy if the watch lasted
// longer than the freshness.
func (s *Scanner) session(ctx context.Context) (healthy bool, err error) {
	s.history.doubt()
	head, err := s.checkHistory(ctx)
	if err != nil {
		return false, err
	}
	s.history.saw(head.ClusterId, head.Revision, nil, false)
	s.history.doubt() // etcd may go back before it is listed
	s.status.listing()
	if err := s.Table.Begin(ctx, head.Revision, false, s.lastCurrent); err != nil {
		return false, err
	}
	if err := s.list(ctx, head.Revision, false); err != nil {
		return false, err
	}
	start := time.Now()
	err = s.watch(ctx, head.Revision)
	return time.Since(start) > s.Freshness, err
}

// list fills the table, where the listing was begun, with what etcd held at
// revision rev.
func (s *Scanner) list(ctx context.Context, rev int64, resync bool) error {
	start := time.Now()
	locks, keys, err := s.fill(ctx, rev)
	if err != nil {
		return err
	}
	if err := s.Table.End(ctx); err != nil {
		return err
	}
	s.status.listed(rev)
	s.Logger.LogAttrs(ctx, listLevel(resync), api.LogListed,
		slog.Int("locks", locks), slog.Int("keys", keys), slog.Int64("revision", rev),
		slog.Duration("took", time.Since(start)), slog.Bool("resync", resync))
	return nil
}

// fill adds all locks at revision rev to the table. It reads the next part of the listing while
// the table applies the last one.
func (s *Scanner) fill(ctx context.Context, rev int64) (locks, keys int, err error) {
	g, ctx := errgroup.WithContext(ctx)
	batches := make(chan []protocol.Lock, 2)
	l := lister{kv: s.Client.KV, layout: s.Layout, timeout: s.RequestTimeout, emit: func(batch []protocol.Lock) error {
		locks += len(batch)
		select {
		case batches <- batch:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
	g.Go(func() (err error) {
		defer close(batches)
		keys, err = l.run(ctx, rev)
		s.history.saw(0, 0, l.newest, false)
		return err
	})
	var refused error
	g.Go(func() error {
		for batch := range batches {
			if refused = s.Table.List(ctx, batch); refused != nil {
				return refused
			}
		}
		return nil
	})
	err = g.Wait()
	if errors.Is(refused, table.ErrOlder) {
		err = refused // whatever failed first: the table will not say so again
	}
	return locks, keys, err
}

// listLevel returns a level at which resyncs are not logged by default.
func listLevel(resync bool) slog.Level {
	if resync {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
