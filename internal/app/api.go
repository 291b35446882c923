package app

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/common/version"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/history"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/web"
	"github.com/etcd-unlocker/unlocker/internal/web/live"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// view gives the API the state of the daemon, in the types of the API. It implements
// web.Source and live.Source.
type view struct {
	app   *App
	store lockstore.Store
	// histories is a semaphore of one: reading a history is expensive for etcd.
	histories chan struct{}
}

func (a *App) newWebHandler() (http.Handler, error) {
	source := view{a, a.newStore(), make(chan struct{}, 1)}
	a.events = live.New(source, a.logger)
	return web.New(web.Options{Source: source, Unlocker: a.newUnlocker(source), Events: a.events, PathPrefix: a.config.Web.PathPrefix, Logger: a.logger})
}

func (v view) Locks(ctx context.Context, q api.Query) (api.LockPage, error) {
	held := v.app.holding()
	if q.Silent && held.blind {
		return api.LockPage{}, &web.Error{Status: http.StatusServiceUnavailable, Err: errors.New("which holders are silent is not known: the daemon does not see renewals now")}
	}
	found, err := v.app.table.Page(ctx, q)
	return v.page(found, q.ByUrgency, held), err
}

func (v view) Windows(ctx context.Context, queries []api.Query) (pages []api.LockPage, blocked time.Duration, err error) {
	held := v.app.holding()
	found, blocked, err := v.app.table.Pages(ctx, queries)
	for i := range found {
		if queries[i].Silent && held.blind {
			found[i] = table.Page{} // who is silent is not known
		}
		pages = append(pages, v.page(found[i], queries[i].ByUrgency, held))
	}
	return pages, blocked, err
}

func (v view) Changed() <-chan struct{} { return v.app.table.Changed() }

func (v view) page(found table.Page, byUrgency bool, held hold) api.LockPage {
	p := api.LockPage{Locks: make([]api.Lock, len(found.Items)), Matched: found.Matched}
	for i := range found.Items {
		it, shown := &found.Items[i], &p.Locks[i]
		*shown = api.NewLock(&it.Lock, it.At, v.app.ahead(it))
		shown.State, shown.Margin = it.State.String(), it.Margin
		v.judge(shown, it, held)
		if it.State == protocol.Held {
			shown.Explanation = ""
		}
		if byUrgency {
			shown.Urgency = protocol.Clip([]byte(it.Position.String()), protocol.MaxName)
		}
	}
	p.Locks = api.Fit(p.Locks)
	if n := len(p.Locks); found.More || n < len(found.Items) {
		p.Next = found.Items[n-1].Position.After()
	}
	return p
}

// Lock implements web.Source. It reads the lock from etcd, which may be newer than the
// watch, and combines it with the clock observation of the table for the verdict.
func (v view) Lock(ctx context.Context, name string) (api.LockDetail, error) {
	entry, err := v.store.ReadOne(ctx, name)
	if errors.Is(err, lockstore.ErrNoLock) {
		return api.LockDetail{}, web.ErrNoLock
	}
	item, seen, failed := v.app.table.Get(ctx, name)
	if err == nil {
		err = failed
	}
	now := time.Now()
	switch {
	case err != nil && seen:
		return v.detail(&item, now), err
	case err != nil:
		return api.LockDetail{}, err
	case !seen || item.Token != entry.Token: // what the table will hold once it sees it
		item = table.View{At: now, Wall: now, OrphanIn: v.app.config.Reaper.OrphanGrace}
	}
	item.Lock = entry.Lock
	detail := v.detail(&item, now)
	detail.Fields, detail.MoreFields = entry.Shown()
	return detail, nil
}

// detail returns a lock without its fields.
func (v view) detail(it *table.View, now time.Time) api.LockDetail {
	d := api.LockDetail{Lock: api.NewLock(&it.Lock, now, v.app.ahead(it))}
	d.Margin = it.Margin
	decided := v.judge(&d.Lock, it, v.app.holding())
	d.Verdict = &decided
	return d
}

// ahead returns by how much the clock of a lock's holder is ahead of ours.
func (a *App) ahead(it *table.View) time.Duration {
	return it.Observation.Ahead(a.config.Reaper.ClockTolerance)
}

func (v view) Forced(name string, limit int) []api.Forced {
	return append([]api.Forced{}, v.app.reaper.Ledger().Page(name, limit)...)
}

func (v view) Status(ctx context.Context) (api.Status, error) {
	const maxHosts = 100 // the maximum number of skewed hosts in the status
	s, err := v.app.snapshot(ctx, maxHosts)
	if err != nil {
		return api.Status{}, err
	}
	status := api.Status{
		Version: version.Version, Identity: v.app.identity, Now: time.Now().UTC(), Started: v.app.started.UTC(),
		Prefix: v.app.config.Prefix, Mode: v.app.config.Reaper.Mode,
		Ready: v.app.missing() == "", Leads: s.Leader,
		Locks: make(map[string]int), Backlog: s.Table.Backlog, Storm: s.Table.Storm,
		Removed: s.Reaper.Removed, NearMisses: s.Table.NearMisses,
		Holds: append([]api.Hold{}, s.Holds...), Pauses: append([]api.Pause{}, v.app.pauses.Records()...), Etcd: etcdStatus(s),
		Clock: s.Table.Clocks, Deadlocks: v.Deadlocks().Deadlocks,
	}
	if v.app.elector != nil {
		status.Leader = v.app.elector.Status().Holder
	}
	for state, n := range s.Table.Locks {
		status.Locks[protocol.State(state).String()] = n
	}
	return status, nil
}

func etcdStatus(s metrics.Snapshot) api.Etcd {
	e := api.Etcd{
		Up: s.EtcdUp(), Alarms: append([]string{}, s.Probe.Alarms...), Revision: s.Scan.Revision, WatchLag: s.WatchLag(),
		Progress: s.Scan.Progress.UTC(), Resynced: s.Scan.Resynced.UTC(), Probed: s.Probe.Good.UTC(),
		Certificates: s.Certificates,
	}
	if err := cmp.Or(s.Scan.LastError, s.Probe.Err); err != nil {
		e.Error = api.ErrorText(err)
	}
	return e
}

// History implements web.Source. It reads one history at a time, for three quarters of the time that
// ctx has, and then returns what it has.
func (v view) History(ctx context.Context, name string) (api.History, error) {
	const wait = 2 * time.Second // for that of another request
	const maxForced = 1000       // how many forced unlocks are compared with the periods
	select {
	case v.histories <- struct{}{}:
		defer func() { <-v.histories }()
	case <-time.After(wait):
		return api.History{}, web.ErrBusy
	case <-ctx.Done():
		return api.History{}, ctx.Err()
	}
	audit := v.app.config.AuditKeys()
	status, err := v.Status(ctx)
	if err != nil {
		return api.History{}, err
	}
	r := history.Reader{
		Store: v.store, AuditPrefix: audit, Ahead: status.Clock.Ahead(),
		ExplainAudit: func(err error) error { return v.app.client.Explain(err, etcd.Read, audit) },
	}
	bounds := history.Bounds{Periods: 50, Renewals: 20, Time: 5 * time.Second}
	if end, limited := ctx.Deadline(); limited {
		bounds.Time = min(bounds.Time, time.Until(end)*3/4)
	}
	h, err := r.Read(ctx, name, bounds)
	history.AddForced(&h, v.Forced(name, maxForced))
	return h, err
}

func (a *App) newNative() (err error) {
	a.native, err = native.New(native.Options{
		Client:         a.client.Client,
		Prefixes:       a.config.NativePrefixes,
		RequestTimeout: a.config.Etcd.RequestTimeout,
		Interval:       5 * time.Second,
		Limits:         native.Limits{Keys: 200_000, Locks: 200, Waiters: 50},
		Explain:        func(err error, prefix string) error { return a.client.Explain(err, etcd.Read, prefix) },
		Logger:         a.logger,
	})
	return err
}

func (v view) Waiters(name string, limit int) api.WaiterList { return v.app.waiters.For(name, limit) }

func (v view) Deadlocks() api.DeadlockList {
	const maxDeadlocks = 10 // how many are shown
	all := v.app.waiters.Deadlocks()
	return api.DeadlockList{Deadlocks: append([]api.Deadlock{}, all[:min(len(all), maxDeadlocks)]...), Error: v.app.waiters.Unknown()}
}

func (v view) Native(ctx context.Context) (api.NativeList, error) { return v.app.native.View(ctx) }
