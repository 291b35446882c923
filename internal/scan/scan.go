// Package scan keeps the table of locks up to date with etcd. It lists all keys under the
// prefix at one revision, watches them from there, and lists them again whenever the watch
// fails. It writes nothing to etcd.
//
// Guaranteed: the table never goes back to an older revision, unless etcd was restored. A
// watch that shows neither an event nor a progress notice for the freshness is ended. Run
// continues until its context is done.
//
// Not guaranteed: that the table is current. Status.Progress is the time of the newest event
// or progress notice.
package scan

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options are the options of New.
type Options struct {
	Client *clientv3.Client
	Layout protocol.Layout
	Table  *table.Table
	// Tolerance is how long the watch may stall before what it shows next does
	// not count as observed live.
	Tolerance time.Duration
	// Freshness is how long a watch may show neither an event nor a progress notice.
	Freshness time.Duration
	// Resync is the time between full listings during a watch; 0 means none.
	Resync time.Duration
	// RequestTimeout limits each request, and the wait for each part of a listing.
	RequestTimeout time.Duration
	// Explain adds the missing permission to an error of etcd.
	Explain func(error) error
	// Newest returns the newest revision that etcd has shown elsewhere, by which a watch that falls behind is
	// relisted; nil disables that. It must not block.
	Newest func() int64
	// Restored is called when etcd was found restored or diverged; nil disables it. It must not block.
	Restored func()
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

// Run lists and watches until ctx is done, and then returns nil. No failure of etcd ends it. It
// returns an error only if the table has stopped.
func (s *Scanner) Run(ctx context.Context) error {
	defer s.status.disconnected()
	return etcd.Loop{List: s.session, Failed: s.failed}.Run(ctx)
}

// failed logs and counts a failure. It returns an error if the table has stopped.
func (s *Scanner) failed(ctx context.Context, failure error) error {
	s.status.disconnected()
	if errors.Is(failure, table.ErrStopped) {
		return failure
	}
	reason, failure := classify(failure), s.Explain(failure)
	s.Logger.Log(ctx, s.status.failed(reason, failure), api.LogWatchFailed, "reason", string(reason), "error", failure)
	if reason != ReasonRegressed {
		return nil
	}
	// What is known belongs to what etcd was before and must not be compared with what it is now.
	s.history.forget()
	s.status.historyChanged()
	if s.Restored != nil {
		s.Restored()
	}
	if err := s.Table.Forget(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

func (s *Scanner) session(ctx context.Context) (etcd.Watch, error) {
	s.history.doubt()
	head, err := s.checkHistory(ctx)
	if err != nil {
		return etcd.Watch{}, err
	}
	s.history.saw(head.ClusterId, head.Revision, nil, false)
	s.status.update(func(s *Status) { s.Listing = true })
	if err := s.Table.Begin(ctx, head.Revision, false); err != nil {
		return etcd.Watch{}, err
	}
	if err := s.list(ctx, head.Revision, false); err != nil {
		return etcd.Watch{}, err
	}
	return s.watch(head.Revision).run(), nil
}

// list fills the table, where the listing was begun, with what etcd held at revision rev.
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
	level := slog.LevelInfo
	if resync {
		level = slog.LevelDebug // not logged by default
	}
	s.Logger.LogAttrs(ctx, level, api.LogListed,
		slog.Int("locks", locks), slog.Int("keys", keys), slog.Int64("revision", rev),
		slog.Duration("took", time.Since(start)), slog.Bool("resync", resync))
	return nil
}

// fill adds all locks at revision rev to the table. It reads the next part of the listing while
// the table applies the last one.
func (s *Scanner) fill(ctx context.Context, rev int64) (locks, keys int, err error) {
	s.history.doubt() // before it takes the newest write of the listing, which may be of an etcd that was restored
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
