package scan

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
	"github.com/etcd-unlocker/unlocker/internal/scan/table"
)

// Options are what a Scanner needs.
type Options struct {
	Client *clientv3.Client
	Layout lock.Layout
	Table  *table.Table
	// Freshness is how long a watch may show no sign of life.
	Freshness time.Duration
	// Resync is the time between full listings beside the watch; 0 for none.
	Resync time.Duration
	// RequestTimeout bounds each request, and each part of a listing.
	RequestTimeout time.Duration
	Logger         *slog.Logger
}

// Scanner keeps a table in line with etcd.
type Scanner struct {
	Options
	status view
	// revision is the newest one seen, cluster the id of the cluster it is of;
	// both are owned by Run.
	revision int64
	cluster  uint64
}

// New returns a Scanner that does nothing until Run.
func New(o Options) (*Scanner, error) {
	switch {
	case o.Client == nil, o.Table == nil, o.Logger == nil, o.Layout.Prefix() == "":
		return nil, errors.New("scan: Client, Table, Logger and Layout are required")
	case o.Freshness <= 0, o.RequestTimeout <= 0, o.Resync < 0:
		return nil, errors.New("scan: Freshness and RequestTimeout must be positive, Resync not negative")
	}
	return &Scanner{Options: o, status: newView()}, nil
}

// Backoff between sessions: from minBackoff, doubled up to maxBackoff, each
// with jitter; back to minBackoff after a session that was healthy.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Run lists and watches until ctx is done. It returns nil then; no failure of
// etcd ends it, only that of the table.
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

// recover takes each class of failure its way and returns how long to wait.
func (s *Scanner) recover(ctx context.Context, failure error, backoff time.Duration) (time.Duration, error) {
	reason := classify(failure)
	again := s.status.failed(reason, failure)
	level := slog.LevelDebug
	if again {
		level = slog.LevelWarn
	}
	s.Logger.Log(ctx, level, message.WatchFailed, "reason", string(reason), "error", failure)
	switch reason {
	case ReasonCompacted:
		return 0, nil // a listing is all it takes, and nothing is wrong with etcd
	case ReasonRegressed:
		// What is known belongs to another history: nothing of it may be
		// compared with this one.
		s.revision, s.cluster = 0, 0
		s.status.forgot()
		if err := s.Table.Forget(ctx); err != nil && ctx.Err() == nil {
			return 0, err
		}
	}
	return backoff/2 + rand.N(backoff), nil
}

// session lists once and watches until that fails. It was healthy where the
// watch lived longer than the freshness.
func (s *Scanner) session(ctx context.Context) (healthy bool, err error) {
	rev, err := s.head(ctx)
	if err != nil {
		return false, err
	}
	if err := s.Table.Begin(ctx, rev, false); err != nil {
		return false, err
	}
	if err := s.list(ctx, rev, false); err != nil {
		return false, err
	}
	start := time.Now()
	err = s.watch(ctx, rev)
	return time.Since(start) > s.Freshness, err
}

// head asks for the present revision and makes sure that it belongs to the
// history that is known.
func (s *Scanner) head(ctx context.Context) (int64, error) {
	h, err := s.header(ctx)
	if err != nil {
		return 0, err
	}
	if s.cluster != 0 && h.ClusterId != s.cluster || h.Revision < s.revision {
		return 0, errRegressed
	}
	s.cluster, s.revision = h.ClusterId, h.Revision
	return h.Revision, nil
}

func (s *Scanner) header(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	return header(ctx, s.Client.KV, s.Layout, s.RequestTimeout)
}

// list brings the table, where the listing was begun, to what etcd held at
// revision rev.
func (s *Scanner) list(ctx context.Context, rev int64, beside bool) error {
	start := time.Now()
	locks, keys, err := s.fill(ctx, rev)
	if err != nil {
		return err
	}
	if err := s.Table.End(ctx); err != nil {
		return err
	}
	s.status.listed(rev)
	s.Logger.LogAttrs(ctx, listLevel(beside), message.Listed,
		slog.Int("locks", locks), slog.Int("keys", keys), slog.Int64("revision", rev),
		slog.Duration("took", time.Since(start)), slog.Bool("resync", beside))
	return nil
}

// fill gives the table all locks of revision rev, which takes one part in while
// the next is read.
func (s *Scanner) fill(ctx context.Context, rev int64) (locks, keys int, err error) {
	g, ctx := errgroup.WithContext(ctx)
	batches := make(chan []lock.Lock, 2)
	l := lister{kv: s.Client.KV, layout: s.Layout, patience: s.RequestTimeout, emit: func(batch []lock.Lock) error {
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
		return err
	})
	g.Go(func() error {
		for batch := range batches {
			if err := s.Table.List(ctx, batch); err != nil {
				return err
			}
		}
		return nil
	})
	err = g.Wait()
	return locks, keys, err
}

// listLevel keeps the routine out of the log.
func listLevel(beside bool) slog.Level {
	if beside {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
