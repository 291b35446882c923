package app

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/common/version"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/web"
)

// view gives the API the state of the daemon, in the types of the API. It implements
// web.Source.
type view struct {
	app   *App
	store lockstore.Store
}

func (a *App) newWebHandler(layout lock.Layout) (http.Handler, error) {
	return web.New(web.Options{
		Source: view{a, a.newStore(layout)}, PathPrefix: a.config.Web.PathPrefix, Logger: a.logger,
	})
}

// Locks implements web.Source.
func (v view) Locks(ctx context.Context, q web.Query) (page []api.Lock, last string, err error) {
	wanted := table.Query{Contains: q.Contains, Hostname: q.Hostname, After: q.After, Limit: q.Limit}
	for s := range lock.NumStates {
		for _, name := range q.States {
			if name == s.String() {
				wanted.States = append(wanted.States, s)
			}
		}
	}
	items, more, err := v.app.table.Page(ctx, wanted)
	if err != nil {
		return nil, "", err
	}
	page, now, held := make([]api.Lock, len(items)), time.Now(), v.app.holding()
	for i := range items {
		page[i] = api.NewLock(&items[i].Lock, now)
		v.judge(&page[i], dueOf(&items[i], now), held)
		if page[i].State == lock.Held.String() {
			page[i].Explanation = ""
		}
	}
	if more {
		last = items[len(items)-1].Name
	}
	return page, last, nil
}

// Lock implements web.Source. It reads the lock from etcd, which may be newer than the
// watch, and combines it with the clock observation of the table for the verdict.
func (v view) Lock(ctx context.Context, name string) (api.LockDetail, error) {
	entry, err := v.store.ReadOne(ctx, name)
	if errors.Is(err, lockstore.ErrNoLock) {
		return api.LockDetail{}, web.ErrNoLock
	}
	if err != nil {
		return api.LockDetail{}, err
	}
	item, seen, err := v.app.table.Get(ctx, name)
	if err != nil {
		return api.LockDetail{}, err
	}
	now := time.Now()
	if !seen || item.Token != entry.Token { // what the table will hold once it sees it
		item = table.Item{Due: now.Add(v.app.config.Reaper.OrphanGrace)}
	}
	item.Lock = entry.Lock
	shown, more := entry.Shown()
	detail := api.LockDetail{Lock: api.NewLock(&entry.Lock, now), Fields: fields(shown), MoreFields: more}
	decided := v.judge(&detail.Lock, dueOf(&item, now), v.app.holding())
	detail.Verdict = &decided
	return detail, nil
}

func fields(all []lockstore.Field) []api.Field {
	shown := make([]api.Field, len(all))
	for i, f := range all {
		shown[i] = api.Field(f)
	}
	return shown
}

// Forced implements web.Source.
func (v view) Forced(name string, limit int) []api.Forced {
	recent := v.app.reaper.Ledger().Page(name, limit)
	shown := make([]api.Forced, len(recent))
	for i, r := range recent {
		shown[i] = api.Forced{
			At: r.At, Name: r.Name, UUID: r.UUID, Hostname: r.Hostname, Owner: r.Owner,
			Trigger: string(r.Verdict.Trigger), Revision: r.Revision, Fields: fields(r.Fields), MoreFields: r.More, Verdict: &r.Verdict,
		}
	}
	return shown
}

// maxHosts is the maximum number of skewed hosts in the status.
const maxHosts = 100

// Status implements web.Source.
func (v view) Status(ctx context.Context) (api.Status, error) {
	s, err := v.app.snapshot(ctx, maxHosts)
	if err != nil {
		return api.Status{}, err
	}
	status := api.Status{
		Version: version.Version, Identity: v.app.identity, Now: time.Now().UTC(),
		Prefix: v.app.config.Prefix, Mode: v.app.config.Reaper.Mode,
		Ready: !s.Scan.Listed.IsZero(), Leads: s.Leader, Leader: v.app.leading(),
		Locks: make(map[string]int), Backlog: s.Table.Backlog,
		Holds: []api.Hold{}, Etcd: etcdStatus(s), Clock: clockStatus(s),
		Removed: make(map[string]uint64),
	}
	for state, n := range s.Table.Locks {
		status.Locks[lock.State(state).String()] = n
	}
	for _, h := range verdict.AllHolds() {
		if hold, held := s.Holds[h]; held {
			status.Holds = append(status.Holds, api.Hold{Hold: string(h), Since: hold.Since.UTC(), Reason: hold.Reason})
		}
	}
	for trigger, n := range s.Reaper.Removed {
		status.Removed[string(trigger)] = n
	}
	return status, nil
}

// maxError limits the bytes of an error in an answer, since its text may be etcd's.
const maxError = 500

func etcdStatus(s metrics.Snapshot) api.Etcd {
	e := api.Etcd{
		Up: s.Scan.Connected && s.Probe.OK, Alarms: append([]string{}, s.Probe.Alarms...), Revision: s.Scan.Revision,
		Progress: s.Scan.Progress.UTC(), Resynced: s.Scan.Resynced.UTC(),
	}
	switch {
	case s.Scan.LastError != nil:
		e.Error = lock.Clip([]byte(s.Scan.LastError.Error()), maxError)
	case s.Probe.Err != nil:
		e.Error = lock.Clip([]byte(s.Probe.Err.Error()), maxError)
	}
	return e
}

func clockStatus(s metrics.Snapshot) api.Clock {
	c := api.Clock{Hosts: s.Table.Clocks.Hosts, Offset: s.OwnOffset().Seconds(), Skewed: []api.HostClock{}}
	for _, h := range s.Table.Clocks.Skewed {
		c.Skewed = append(c.Skewed, api.HostClock{Hostname: h.Hostname, Offset: h.Offset.Seconds()})
	}
	return c
}
