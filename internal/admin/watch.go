package admin

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Watch is a list of locks that Run keeps current. Changes and View read all locks: a caller that
// does so in a loop pauses for a multiple of what that takes. They must not be called concurrently.
type Watch struct {
	admin   *Admin
	filter  Filter
	table   *table.Table
	scanner *scan.Scanner
	waiters *waiters.Waiters
	changed chan struct{}
	fail    context.CancelCauseFunc
	// shown are the locks of the list as Changes last returned them, by name; nil before its
	// first call. reads counts its calls.
	shown map[string]*Change
	reads int
	// last is what View last returned.
	last View
}

// Change is a lock that has changed, as it was when it was last read.
type Change struct {
	protocol.Lock
	State protocol.State
	// Ahead is by how much the clock of its holder is known to be ahead.
	Ahead time.Duration
	// Waiters is how many wait for it.
	Waiters int
	// Matches reports whether the lock is in the list. Gone reports whether it does not exist any more;
	// then the rest is what was known before.
	Matches, Gone bool
	read          int
}

// order is the newest revision known, or past all revisions: when a lock was deleted is not known.
func (c *Change) order() int64 {
	if c.Gone {
		return math.MaxInt64
	}
	return c.Revision
}

// Watch returns a list of the locks that match the filter, which is empty until Run is called.
func (a *Admin) Watch(f Filter) (*Watch, error) {
	w := &Watch{admin: a, filter: f, changed: make(chan struct{}, 1)}
	began := time.Now()
	var err error
	w.table, err = table.New(table.Options{
		// The table only keeps the locks: it is not asked for those that are due.
		Rules:        verdict.Rules{Reaper: config.Reaper{Mode: verdict.Off, ClockTolerance: a.config.Reaper.ClockTolerance, OrphanGrace: time.Minute}},
		Allowance:    func(int64, time.Time, bool) (deadline, patience time.Duration) { return 0, 0 },
		Raw:          func() time.Duration { return time.Since(began) },
		HoldDuration: unobserved{}, RenewalMargin: unobserved{},
	})
	if err != nil {
		return nil, err
	}
	w.scanner, err = scan.New(scan.Options{
		Client: a.client.Client, Layout: a.layout, Table: w.table, Logger: a.logger,
		Tolerance: a.config.Reaper.ClockTolerance, Freshness: a.config.Etcd.RequestTimeout, RequestTimeout: a.config.Etcd.RequestTimeout,
		Explain: func(err error) error { return a.failed(context.Background(), err, etcd.Read) },
		Changed: w.scanned,
	})
	if err != nil {
		return nil, err
	}
	w.waiters, err = waiters.New(waiters.Options{
		FollowerOptions: etcd.FollowerOptions{
			Client: a.client.Client, Prefix: a.config.WaitersKeys(), Logger: a.logger, Explain: func(err error) error { return err },
			Freshness: a.config.Etcd.RequestTimeout, RequestTimeout: a.config.Etcd.RequestTimeout,
		},
		Changed: w.table.Notify, WaitDuration: unobserved{},
	})
	return w, err
}

type unobserved struct{}

func (unobserved) Observe(float64) {}

// scanned ends Run if the first listing has failed.
func (w *Watch) scanned() {
	if s := w.scanner.Status(); s.LastError != nil && s.Listed.IsZero() && s.History == 0 {
		w.fail(s.LastError)
		return
	}
	w.notify()
}

func (w *Watch) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Run keeps the list current until ctx is done, and then returns nil. It returns an error only
// if the first listing fails.
func (w *Watch) Run(ctx context.Context) error {
	limited, fail := context.WithCancelCause(ctx)
	w.fail = fail
	g, running := errgroup.WithContext(limited)
	g.Go(func() error { return w.table.Run(running) })
	g.Go(func() error { return w.scanner.Run(running) })
	g.Go(func() error { return w.waiters.Run(running) })
	g.Go(func() error { return w.forward(running) })
	err := g.Wait()
	if ctx.Err() == nil {
		err = cmp.Or(context.Cause(limited), err)
	}
	fail(nil)
	return err
}

// forward receives what the table reports until ctx is done.
func (w *Watch) forward(ctx context.Context) error {
	for {
		select {
		case <-w.table.Changed():
			if w.listed() {
				w.notify()
			}
		case <-w.table.Gone():
		case <-ctx.Done():
			return nil
		}
	}
}

// listed reports whether the table has the locks of one revision or newer: not while it has those of
// a listing in part.
func (w *Watch) listed() bool {
	s := w.scanner.Status()
	return !s.Listed.IsZero() && !s.Listing
}

// Changed is ready when something has changed since it was last received from, and for the first
// time when all locks are listed. What changes with time alone need not make it ready.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Trouble returns why the list may be out of date, and since when; nil if it is not.
func (w *Watch) Trouble() (since time.Time, err error) {
	s := w.scanner.Status()
	if s.Resynced.After(s.Lost) {
		return time.Time{}, nil
	}
	if since = s.Progress; since.Before(s.Resynced) {
		since = s.Resynced
	}
	return since, s.LastError
}

// each calls f for each lock whose name matches, once the clock of its holder is noted, and reports whether those
// were all.
func (w *Watch) each(ctx context.Context, now instant, f func(*protocol.Lock)) bool {
	before := w.scanner.Status().History
	complete := w.listed() && w.table.Each(ctx, func(l *protocol.Lock, ahead time.Duration, known bool) {
		if w.filter.Match == "" || doublestar.MatchUnvalidated(w.filter.Match, l.Name) {
			w.admin.note(now, l, ahead, known)
			f(l)
		}
	}) == nil
	return complete && w.listed() && w.scanner.Status().History == before
}

// Now is the time at which what is listed is evaluated.
func (w *Watch) Now() time.Time { return w.admin.instant().Time }

// Changes returns the changes since the last call, those of states by time included. The first
// call returns all locks of the list, in the order of the filter; later ones are in the order of
// their revisions, those that are gone last.
func (w *Watch) Changes(ctx context.Context) []Change {
	now := w.admin.instant()
	compare := func(a, b *Change) int {
		return cmp.Or(cmp.Compare(a.order(), b.order()), strings.Compare(a.Name, b.Name))
	}
	if w.shown == nil {
		w.shown = make(map[string]*Change)
		order := w.admin.compareBy(w.filter.Sort, now)
		compare = func(a, b *Change) int { return order(&a.Lock, &b.Lock) }
	}
	w.reads++
	var changed []*Change
	kept := 0
	complete := w.each(ctx, now, func(l *protocol.Lock) {
		was, state, matches := w.shown[l.Name], l.State(now.of(l)), w.filter.wants(l, now)
		switch {
		case was == nil && !matches, was != nil && was.read == w.reads:
			return
		case was == nil:
			was = &Change{Lock: protocol.Lock{Name: l.Name}}
			w.shown[l.Name] = was
		}
		was.read = w.reads
		kept++
		if matches != was.Matches || state != was.State || l.Revision != was.Revision || l.Token != was.Token || l.Keys != was.Keys {
			was.Lock, was.State, was.Ahead, was.Matches, was.Waiters = *l, state, now.ahead[l.Name], matches, w.waiters.Count(l.Name)
			changed = append(changed, was)
		}
	})
	if complete && kept < len(w.shown) {
		for _, c := range w.shown {
			if c.read != w.reads {
				c.Matches, c.Gone = false, true
				changed = append(changed, c)
			}
		}
	}
	slices.SortFunc(changed, compare)
	var changes []Change
	for _, c := range changed {
		if !c.Matches {
			delete(w.shown, c.Name)
		}
		changes = append(changes, *c)
	}
	return changes
}

// View is what a screen shows of a list.
type View struct {
	At     time.Time
	Prefix string
	// Sort is the order, one of Orders.
	Sort string
	// Total counts the locks whose names match, and Matched those that match the whole filter.
	// States counts the latter by state.
	Total, Matched int
	States         [protocol.NumStates]int
	// Locks are the first of those that match.
	Locks []api.Lock
	// Trouble is why all this may be out of date, and Since since when; nil if it is not.
	Trouble error
	Since   time.Time
}

// Find restricts what View returns to locks whose name contains a text.
func (w *Watch) Find(text string) { w.filter.Contains = text }

// View returns the first n locks of the list. While etcd is listed again, these are those of the last
// call.
func (w *Watch) View(ctx context.Context, n int) View {
	now := w.admin.instant()
	v := View{At: now.Time, Prefix: w.admin.Prefix(), Sort: cmp.Or(w.filter.Sort, Orders()[0])}
	first := best{n: max(n, 1), compare: w.admin.compareBy(w.filter.Sort, now)}
	if w.each(ctx, now, func(l *protocol.Lock) {
		v.Total++
		if w.filter.wants(l, now) {
			v.Matched++
			v.States[l.State(now.of(l))]++
			first.add(l)
		}
	}) {
		for _, k := range first.all() {
			v.Locks = append(v.Locks, api.NewLock(&k, v.At, now.ahead[k.Name]))
			v.Locks[len(v.Locks)-1].Waiters = w.waiters.Count(k.Name)
		}
		w.last = v
	}
	at := v.At
	v = w.last
	v.At = at
	v.Since, v.Trouble = w.Trouble()
	return v
}

// best keeps the first n of many locks, in memory for 2n.
type best struct {
	n       int
	compare func(a, b *protocol.Lock) int
	kept    []protocol.Lock
	sorted  bool
}

func (b *best) add(l *protocol.Lock) {
	if b.sorted && b.compare(l, &b.kept[b.n-1]) >= 0 {
		return
	}
	if b.kept = append(b.kept, *l); len(b.kept) == 2*b.n {
		b.kept, b.sorted = b.all(), true
	}
}

func (b *best) all() []protocol.Lock {
	slices.SortFunc(b.kept, func(k, l protocol.Lock) int { return b.compare(&k, &l) })
	return b.kept[:min(b.n, len(b.kept))]
}
