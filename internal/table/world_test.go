package table

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	grace       = 2 * time.Second
	tolerance   = 2 * time.Second
	orphanGrace = time.Minute
)

// world is a table that runs in a bubble, beside its etcd.
type world struct {
	*etcd
	*Table
	t   require.TestingT
	ctx context.Context
	// stop ends the table.
	stop func()
	// held and margins are what the histograms were told, deleted what Gone was.
	held    *observed
	margins *observed
	deleted []Gone
	// ahead is by how much our wall clock is off.
	ahead   atomic.Int64
	outages outages
}

type observed []float64

func (o *observed) Observe(v float64) { *o = append(*o, v) }

// outages are those that a probe would have found.
type outages struct {
	mu  sync.Mutex
	all []outage
}

type outage struct {
	from, to time.Time
	revision int64
}

// requestTimeout is how long a renewal may be on its way.
const requestTimeout = 5 * time.Second

func (o *outages) allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, one := range o.all {
		if one.revision >= written || !stamped && one.to.After(learned.Add(-requestTimeout)) {
			deadline += one.to.Sub(one.from)
		}
		patience += min(one.to.Sub(one.from), max(0, one.to.Sub(learned)))
	}
	return deadline, patience
}

// inBubble runs f with a table, and with time that passes only when all goroutines wait.
func inBubble(t *testing.T, f func(*testing.T, *world), edits ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, edits...)
		defer w.stop()
		f(t, w)
		w.check()
		w.stop()
		_, open := <-w.Due()
		require.False(t, open, "it wakes up waiters")
		_, err := w.Take(t.Context(), 1)
		require.ErrorIs(t, err, ErrStopped)
		require.ErrorIs(t, w.Apply(t.Context(), nil), ErrStopped)
		require.ErrorIs(t, w.List(t.Context(), nil), ErrStopped)
	})
}

// newWorld returns a world whose table runs until stop is called.
func newWorld(t require.TestingT, edits ...func(*Options)) *world {
	w := &world{etcd: newEtcd(), t: t, ctx: context.Background(), held: &observed{}, margins: &observed{}}
	start := time.Now()
	o := Options{
		Raw:          func() time.Duration { return time.Hour + time.Since(start) }, // since the host booted
		Rules:        verdict.Rules{Reaper: config.Reaper{Mode: verdict.Enforce, Grace: grace, ClockTolerance: tolerance, OrphanGrace: orphanGrace}},
		Allowance:    w.outages.allowance,
		HoldDuration: w.held, RenewalMargin: w.margins,
		Now: func() time.Time { return present().Add(time.Duration(w.ahead.Load())) },
	}
	for _, edit := range edits {
		edit(&o)
	}
	var err error
	w.Table, err = New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return w
}

// live applies events that were observed live.
func (w *world) live(events []Event) {
	require.NoError(w.t, w.Apply(w.ctx, events))
	w.check()
}

// replay applies events that were not.
func (w *world) replay(events []Event) {
	require.NoError(w.t, w.Replay(w.ctx, events))
	w.check()
}

func (w *world) acquire(name string, alert, auto time.Duration) {
	w.live(w.put(name, fields(alert, auto)))
}

func (w *world) renew(name string, alert, auto time.Duration) {
	w.live(w.put(name, map[string]string{"alert_at": at(alert), "auto_unlock_at": at(auto), "alive_at": at(0)}))
}

func (w *world) release(name string) { w.live(w.del(name)) }

// listing lists what etcd holds now.
func (w *world) listing(beside bool) { require.NoError(w.t, w.list(beside)) }

func (w *world) list(beside bool) error {
	require.NoError(w.t, w.Begin(w.ctx, w.rev, beside))
	err := w.List(w.ctx, w.collect())
	require.NoError(w.t, w.End(w.ctx))
	w.check()
	require.Nil(w.t, w.core.listing.deleted)
	w.handBack()
	return err
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	w.check()
}

// clock sets our wall clock to be ahead of the true one.
func (w *world) clock(ahead time.Duration) {
	w.ahead.Store(int64(ahead))
	w.live(nil)
}

// outage is one that ends now, and that the probe noticed.
func (w *world) outage(d time.Duration) { w.outageFrom(time.Now().Add(-d), d) }

func (w *world) outageFrom(start time.Time, d time.Duration) {
	w.outages.mu.Lock()
	w.outages.all = append(w.outages.all, outage{start, start.Add(d), w.rev})
	w.outages.mu.Unlock()
	require.NoError(w.t, w.Reschedule(w.ctx))
	w.check()
}

// noOutage is for one that was shorter than it seemed at first.
func (w *world) noOutage() {
	w.outages.mu.Lock()
	w.outages.all = nil
	w.outages.mu.Unlock()
	require.NoError(w.t, w.Reschedule(w.ctx))
	w.check()
}

func (w *world) get(name string) *View {
	item, found, err := w.Get(w.ctx, name)
	require.NoError(w.t, err)
	require.True(w.t, found, name)
	return &item
}

func (w *world) state(name string) protocol.State { return w.get(name).State }

// observation is what is known of a lock now.
func (w *world) observation(name string) verdict.Observation { return w.get(name).Observation }

// due returns how long it is until Take may return a lock.
func (w *world) due(name string) time.Duration {
	due := w.dueAt(name)
	require.NotEqual(w.t, never, due, name)
	return time.Duration(due) - time.Since(w.core.clock.base)
}

// dueAt returns when Take may return a lock.
func (w *world) dueAt(name string) (due instant) {
	require.NoError(w.t, w.do(w.ctx, func(c *core) {
		e := c.locks[name]
		if due = never; e.Removable() && e.phase != suspended {
			due = c.dueAt(e, c.now())
		}
	}))
	return due
}

func (w *world) stats() Stats {
	s, err := w.Stats(w.ctx, 9)
	require.NoError(w.t, err)
	return s
}

// counted are the counters of Stats.
type counted struct{ acquired, renewed, released, drift uint64 }

func (w *world) counted() counted {
	s := w.stats()
	return counted{s.Acquired, s.Renewed, s.Released, s.Drift}
}

// names are those of all locks.
func (w *world) names() (names []string) {
	page, err := w.Page(w.ctx, api.Query{Limit: 1_000_000})
	require.NoError(w.t, err)
	for _, it := range page.Items {
		names = append(names, it.Name)
	}
	return names
}

// take takes what is due now.
func (w *world) take() []View {
	synctest.Wait()
	due, err := w.Take(w.ctx, 10_000)
	require.NoError(w.t, err)
	return due
}

func (w *world) taken() (names []string) {
	for _, d := range w.take() {
		names = append(names, d.Name)
	}
	w.check()
	return names
}

func (w *world) postpone(name string, token int64, delay time.Duration) {
	w.answer(View{Lock: protocol.Lock{Name: name, Token: token}}, delay)
}

func (w *world) answer(d View, delay time.Duration) {
	require.NoError(w.t, w.Postpone(w.ctx, d, delay))
	w.check()
}

// gone returns all that Gone has told so far.
func (w *world) gone() []Gone {
	for {
		synctest.Wait()
		select {
		case more := <-w.Table.gone:
			w.deleted = append(w.deleted, more...)
		default:
			return w.deleted
		}
	}
}

// check holds what is always true of a table at rest.
func (w *world) check() {
	synctest.Wait()
	c := w.core
	now := c.clock.read()
	var counts [protocol.NumStates]int
	backlog, brakes, stormWaits, inPending, inReady, inOverdue := 0, 0, 0, 0, 0, 0
	for name, e := range c.locks {
		require.Equal(w.t, name, e.Name)
		require.Equal(w.t, e.State(c.holderTime(e, now)), e.state, name)
		require.Positive(w.t, e.Keys, name)
		require.False(w.t, e.has(touched|acquiredSeen|writtenSeen|aliveSeen), name)
		require.True(w.t, e.phase != taken && e.phase != changed || e.has(unanswered), name)
		require.True(w.t, e.has(cameDue) || !e.has(stormDelayed), name)
		require.True(w.t, e.has(stormDelayed) || !e.has(stormWaiting), name)
		counts[e.state]++
		if e.phase != waiting && e.phase != paused && e.phase != braked && c.mayRemove(e) {
			backlog++
		}
		if e.phase == braked {
			brakes++
		}
		if e.has(stormWaiting) {
			stormWaits++
		}
		switch {
		case e.phase == ready:
			inReady++
			require.Same(w.t, e, c.ready.entries[e.pos-1], name)
		case e.pos != 0:
			inPending++
			require.NotEqual(w.t, taken, e.phase, name)
			require.Same(w.t, e, c.pending.entries[e.pos-1], name)
		}
		if e.overduePos != 0 {
			inOverdue++
			require.Same(w.t, e, c.overdue.entries[e.overduePos-1], name)
		}
		since := e.OverdueSince()
		require.Equal(w.t, since != 0 && since <= c.holderTime(e, now), e.overduePos != 0, name)
	}
	require.Equal(w.t, counts, c.counts)
	require.Equal(w.t, backlog, c.backlog)
	require.Equal(w.t, brakes, c.phases[braked])
	require.Equal(w.t, stormWaits, c.storm.waiting)
	require.Equal(w.t, inPending, c.pending.Len())
	require.Equal(w.t, inReady, c.ready.Len())
	require.Equal(w.t, inOverdue, c.overdue.Len())
	for _, x := range []*index{&c.pending, &c.ready, &c.overdue} {
		for i := 1; i < x.Len(); i++ {
			require.False(w.t, x.Less(i, (i-1)/2), "heap order at %d", i)
		}
	}
	w.handBack()
}

// handBack orders what a test has read of the core before what the table does next.
func (w *world) handBack() { require.NoError(w.t, w.do(w.ctx, func(*core) {})) }
