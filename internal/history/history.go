// Package history tells who held a lock and how each period ended, from what etcd's old revisions
// show, what holders wrote into their locks, the records of manual unlocks and what a daemon knows.
//
// Guaranteed: what it says follows from that. Texts are valid UTF-8 and bounded, as are the
// requests to etcd, which are made one after the other.
//
// Not guaranteed: that a time is right. etcd keeps none, so that all are by the clocks of those
// who wrote them.
package history

import (
	"context"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Reader reads histories.
type Reader struct {
	Store lockstore.Store
	// AuditPrefix is where the records of manual unlocks are.
	AuditPrefix string
	// ExplainAudit adds the missing permission to an error about them.
	ExplainAudit func(error) error
}

// Read reads the history of a lock. The name must be valid. The error is that of etcd; records of
// manual unlocks that cannot be read are only said to be missing.
func (r Reader) Read(ctx context.Context, name string, b lockstore.Bounds) (api.History, error) {
	past, err := r.Store.History(ctx, name, b)
	if err != nil {
		return api.History{}, err
	}
	h := tell(name, past, time.Now().UTC())
	if err := r.records(ctx, name, &h); err != nil {
		h.Incomplete = "the records of manual unlocks could not be read: " + api.ErrorText(r.ExplainAudit(err))
	}
	return h, nil
}

// tell says of a past what follows from it alone.
func tell(name string, past lockstore.Past, now time.Time) api.History {
	h := api.History{
		Name: protocol.Clip([]byte(name), lockstore.MaxName), Now: now, Revision: past.Revision, FromRevision: past.From,
		Compacted: past.Compacted, Truncated: past.Truncated, Periods: []api.Period{},
	}
	next := now // a time after the end of a period
	for i := range past.Periods {
		was := &past.Periods[i]
		p := period(was)
		if was.Until != 0 {
			p.Ended = &api.Ended{
				Moment: api.Moment{Revision: was.Until}, After: later(was.LockedAt().Time(), was.AliveAt().Time()), Leftovers: was.Leftovers,
			}
			if !next.Before(p.Ended.After) { // otherwise the clocks contradict each other
				p.Ended.Before = next
			}
			p.Ended.How = how(was, p)
		}
		if !p.Acquired.At.IsZero() {
			next = p.Acquired.At
		}
		h.Periods = append(h.Periods, p)
	}
	return h
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func period(was *lockstore.Period) api.Period {
	p := api.NewPeriod(&was.Lock)
	p.Acquired, p.MoreRenewals = api.Moment{Revision: was.Since, At: was.LockedAt().Time()}, was.More
	for i := range was.Renewals {
		r := &was.Renewals[i]
		shown := api.Renewal{Moment: api.Moment{Revision: r.Revision, At: r.At.Time()}}
		if share, known := verdict.Margin(&r.Before, 0, r.At); known {
			shown.Margin = &share
		}
		p.Renewals = append(p.Renewals, shown)
	}
	return p
}

// how says how a period ended, as far as its times tell.
func how(was *lockstore.Period, p api.Period) string {
	switch deadline := p.AutoUnlockAt; {
	case was.Overwritten:
		return api.EndOverwritten
	case deadline.IsZero(), !p.Ended.Before.IsZero() && !p.Ended.Before.After(deadline):
		return api.EndReleased
	case !p.Ended.After.Before(deadline):
		return api.EndLate
	}
	return api.EndRemoved
}

// records adds what the records of manual unlocks say. The one of an unlock was written in the
// transaction that deleted the lock, so that it can be read at that revision even after a day.
func (r Reader) records(ctx context.Context, name string, h *api.History) error {
	var revisions []int64
	for _, p := range h.Periods {
		if p.Ended != nil {
			revisions = append(revisions, p.Ended.Revision)
		}
	}
	written, err := r.Store.WrittenAt(ctx, r.AuditPrefix, revisions)
	for revision, values := range written {
		for _, value := range values {
			if rec, err := records.Parse(value); err == nil && rec.Prefix == r.Store.Layout.Prefix() && rec.Name == protocol.Clip([]byte(name), records.MaxText) {
				rec.Revision, rec.By = revision, "" // no daemon was asked
				AddForced(h, []api.Forced{rec.Forced})
			}
		}
	}
	return err
}

// AddForced adds what a daemon, or the record of a manual unlock, knows about the ends: its forced
// unlocks of the lock.
func AddForced(h *api.History, forced []api.Forced) {
	for _, p := range h.Periods {
		for _, f := range forced {
			if p.Ended != nil && f.UUID == p.UUID && (f.Revision == p.Ended.Revision || f.Revision == 0) {
				learn(p.Ended, f)
			}
		}
	}
}

// learn adds what is known about a removal.
func learn(e *api.Ended, f api.Forced) {
	switch f.Trigger {
	case verdict.Expiry:
		e.How = api.EndExpired
	case verdict.Manual:
		e.How = api.EndManual
	case "": // an unknown client, after the deadline
		if e.How == api.EndManual {
			return
		}
		e.How = api.EndLate
	default:
		return // of what nobody held
	}
	e.At, e.By, e.Who, e.Reason = f.At, f.By, f.Who, f.Reason
}
