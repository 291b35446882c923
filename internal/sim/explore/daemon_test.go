package explore

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// without is the rule that is taken out, by what the daemon is given.
type without struct {
	// observation edits what is known of a lock, and signals the input of the holds.
	observation func(*verdict.Observation)
	signals     func(*verdict.Signals)
	// allowance is for outages, settle after holds.
	allowance, settle bool
	// live: late knowledge is treated as observed live. restored: a restore is not noticed.
	live, restored bool
	// confirm: no probe before a removal. departure: no look at the gate when it departs.
	confirm, departure bool
	// compare reports whether a compare of a lock is dropped. pauses: that of the pauses is.
	compare func(*pb.Compare) bool
	pauses  bool
}

// replica is a daemon: the real table, probe, reaper and lockstore, with what the scanner and the pauses tell
// them. The mutex of the server guards its own fields.
type replica struct {
	*world
	n    int
	link *link
	step atomic.Int64 // of its wall clock

	table  *table.Table
	probe  *probe.Probe
	reaper *reaper.Reaper
	cancel context.CancelFunc

	// queue are the events that the watch has not shown yet: until cut it shows nothing.
	queue   []*mvccpb.Event
	cut     time.Time
	broken  bool // etcd was restored, which it has not noticed yet
	signals verdict.Signals
	paused  int64 // the newest pause that is known
	said    verdict.Verdict
	free    time.Time // since when nothing keeps it from removing
	quiet   time.Time // when there was last a cause for a hold that settles
}

func (r *replica) now() time.Time { return wall(time.Duration(r.step.Load())) }

// allowance is the only place that depends on the arguments of an outage allowance.
func (r *replica) allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
	if r.out.allowance {
		return 0, 0
	}
	return r.probe.Allowance(written, learned, stamped)
}

// prober is the probe as the reaper sees it.
type prober struct {
	*probe.Probe
	r *replica
}

// Allowance implements reaper.Probe.
func (p prober) Allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
	return p.r.allowance(written, learned, stamped)
}

// sure is a probe that confirms everything.
type sure struct{ prober }

func (sure) Begin()                                 {}
func (sure) Await(context.Context, time.Time) error { return nil }
func (sure) Good() time.Time                        { return time.Now() }

// Newest implements reaper.Pauses.
func (r *replica) Newest() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

// For implements reaper.Pauses.
func (r *replica) For(string) verdict.Pause { return verdict.Pause{} }

// Observe is for the histograms.
func (r *replica) Observe(float64) {}

// journal hears the verdicts before removals.
type journal struct {
	slog.Handler
	r *replica
}

func (journal) Enabled(context.Context, slog.Level) bool { return true }

func (j journal) Handle(_ context.Context, rec slog.Record) error {
	rec.Attrs(func(a slog.Attr) bool {
		if v, ok := a.Value.Any().(verdict.Verdict); ok && rec.Message == api.LogRemoving {
			j.r.mu.Lock()
			j.r.said = v
			j.r.mu.Unlock()
		}
		return true
	})
	return nil
}

// start starts a daemon, which lists as soon as it can.
func (w *world) start(n int) *replica {
	r := &replica{world: w, n: n, link: &link{server: &w.server, out: &w.out, tell: w.tell}}
	r.link.sent = r.sends
	w.links = append(w.links, r.link)
	rules := verdict.Rules{Reaper: config.Reaper{
		Mode: verdict.Enforce, Grace: grace, ClockTolerance: tolerance, StandbyDelay: standby, OrphanGrace: time.Hour,
		Settle: settle, Freshness: freshness, BatchSize: 16, Concurrency: 1,
	}}
	if w.out.settle {
		rules.Settle = 0
	}
	began := time.Now()
	var err error
	r.table, err = table.New(table.Options{
		Rules: rules, Allowance: r.allowance, Lead: func() time.Duration { return r.probe.Lead() },
		Now: r.now, Raw: func() time.Duration { return time.Since(began) }, HoldDuration: r, RenewalMargin: r,
	})
	must(err)
	r.probe, err = probe.New(probe.Options{
		Etcd: r.link, Members: 1, Interval: tick / 2, Timeout: timeout, Patience: grace,
		Ended: func(ctx context.Context) { _ = r.table.Reschedule(ctx) },
	})
	must(err)
	r.reaper, err = reaper.New(reaper.Options{
		Store: r.store(), Source: r.source(), Rules: rules, Signals: r.read, Leader: func() bool { return n == 0 },
		Probe: r.prober(), Pauses: r, Retention: time.Hour, Delay: r, Now: r.now, Sleep: wait,
		Logger: slog.New(journal{slog.DiscardHandler, r}),
	})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	for _, run := range []func(context.Context) error{r.table.Run, r.probe.Run, r.reaper.Run} {
		w.running.Go(func() { must(run(ctx)) })
	}
	return r
}

func (r *replica) store() lockstore.Store {
	layout, err := protocol.NewLayout(prefix)
	must(err)
	st := lockstore.Store{KV: clientv3.NewKVFromKVClient(r.link, nil), Layout: layout, RequestTimeout: timeout, Pauses: pausePrefix}
	if r.out.pauses {
		st.Pauses = ""
	}
	return st
}

func (r *replica) source() reaper.Source {
	if r.out.observation != nil {
		return &edited{Table: r.table, r: r}
	}
	return r.table
}

func (r *replica) prober() reaper.Probe {
	if r.out.confirm {
		return sure{prober{r.probe, r}}
	}
	return prober{r.probe, r}
}

// read returns the signals, as app.Signals does.
func (r *replica) read() verdict.Signals {
	p := r.probe.Status()
	overdue := r.probe.Overdue()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.signals
	s.Probed, s.ProbeErr, s.Alarms, s.Failed, s.Alarmed, s.Overdue = p.OK, p.Err, p.Alarms, p.Failed, p.Alarmed, overdue
	if r.out.signals != nil {
		r.out.signals(&s)
	}
	return s
}

// progress is what the scanner does when the watch shows something: it lists, or applies the events that
// waited. Those after a silence of more than the tolerance are late knowledge.
func (r *replica) progress(ctx context.Context) {
	now := time.Now()
	if r.link.held() || now.Before(r.cut) && !r.broken {
		return
	}
	if r.broken && !r.out.restored {
		r.probe.Forget()
		_ = r.table.Forget(ctx)
		r.signals.Lost, r.signals.ListedAt = now, time.Time{}
		r.signals.History++
		r.paused, r.signals.Paused = 0, ""
	}
	if r.broken || r.signals.ListedAt.IsZero() {
		r.list(ctx, now)
	}
	batch := r.convert(r.queue)
	if now.Sub(r.signals.LastSign) <= tolerance || r.out.live {
		_ = r.table.Apply(ctx, batch)
	} else {
		_ = r.table.Replay(ctx, batch)
	}
	r.queue, r.signals.Connected, r.signals.LastSign = nil, true, now
}

// list lists the locks, and the pauses.
func (r *replica) list(ctx context.Context, now time.Time) {
	var all []*mvccpb.Event
	for _, key := range r.within("", "~") {
		all = append(all, &mvccpb.Event{Kv: r.kvs[key]})
	}
	r.queue, r.broken = nil, false
	events := r.convert(all)
	if r.out.live {
		_ = r.table.Apply(ctx, events)
	} else {
		_ = r.table.Begin(ctx, r.revision, false)
		_ = r.table.List(ctx, locks(events)) // an error where a restore was not noticed
		_ = r.table.End(ctx)
	}
	if r.signals.ListedAt.IsZero() {
		r.signals.ListedAt = now
	}
}

// convert returns the events of locks, and takes note of pauses.
func (r *replica) convert(events []*mvccpb.Event) (all []table.Event) {
	for _, ev := range events {
		name, field := split(string(ev.Kv.Key))
		if name == "" {
			r.paused, r.signals.Paused = ev.Kv.ModRevision, "paused by a user"
			continue
		}
		kv := protocol.KV{Field: protocol.ParseField([]byte(field)), Value: ev.Kv.Value, Create: ev.Kv.CreateRevision, Mod: ev.Kv.ModRevision}
		all = append(all, table.Event{Name: []byte(name), KV: kv, Deleted: ev.Type == mvccpb.Event_DELETE})
	}
	return all
}

// locks returns the lock of which these are the keys, if there are any.
func locks(keys []table.Event) []protocol.Lock {
	if len(keys) == 0 {
		return nil
	}
	var b protocol.Builder
	for _, k := range keys {
		b.Add(k.KV)
	}
	return []protocol.Lock{b.Lock(string(keys[0].Name))}
}

// view is the lock as the daemon knows it, or zero.
func (r *replica) view() table.View {
	v, _, _ := r.table.Get(context.Background(), "a")
	return v
}

// edited is a table whose observations are edited. These also decide what is due.
type edited struct {
	*table.Table
	r     *replica
	given atomic.Int64 // the revision of the lock that was given
}

// Due implements reaper.Source.
func (e *edited) Due() <-chan struct{} {
	due := make(chan struct{}, 1)
	const often = tick / 10
	time.AfterFunc(often-time.Since(e.r.began)%often, func() { due <- struct{}{} })
	return due
}

// Take implements reaper.Source.
func (e *edited) Take(context.Context, int) ([]table.View, error) {
	v := e.r.view()
	e.r.out.observation(&v.Observation)
	if v.Revision == 0 || e.r.reaper.Verdict(v).Remaining > 0 || e.given.Swap(v.Revision) == v.Revision {
		return nil, nil
	}
	return []table.View{v}, nil
}

// Postpone implements reaper.Source.
func (e *edited) Postpone(context.Context, table.View, time.Duration) error {
	e.given.Store(0)
	return nil
}
