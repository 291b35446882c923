// Package history tells who held a lock and how each period ended, from what etcd's old revisions
// show, what holders wrote into their locks, the records of removals and what a daemon knows.
//
// Guaranteed: what it says follows from that. Texts are valid UTF-8 and bounded, as are the
// requests to etcd, which are made one after the other.
//
// Not guaranteed: that a time is right. etcd keeps none, so that all are by the clocks of those
// who wrote them, corrected where Reader.Ahead has these.
package history

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Reader reads histories.
type Reader struct {
	Store lockstore.Store
	// AuditPrefix is where the records of removals are.
	AuditPrefix string
	// Ahead is by how much the clocks of hosts are ahead, as a daemon has observed them; nil if none was asked.
	Ahead map[string]time.Duration
	// ExplainAudit adds the missing permission to an error about them.
	ExplainAudit func(error) error
}

// Read reads the history of a lock. The error is that of etcd, or of a name that is not valid; records of
// removals that cannot be read are only said to be missing.
func (r Reader) Read(ctx context.Context, name string, b Bounds) (api.History, error) {
	h, err := r.walk(ctx, name, b)
	if err != nil {
		return api.History{}, err
	}
	for i := range h.Periods {
		r.correct(&h.Periods[i])
	}
	explain(&h)
	if err := r.records(ctx, &h); err != nil {
		h.Incomplete = "the records of removals could not be read: " + api.ErrorText(r.ExplainAudit(err))
	}
	return h, nil
}

// correct converts the times of a period to the clock of the daemon that has observed how far its holder's is off.
func (r Reader) correct(p *api.Period) {
	ahead := r.Ahead[p.Hostname]
	p.ClockOffset = ahead.Seconds()
	times := []*time.Time{&p.Acquired.At, &p.AliveAt, &p.AutoUnlockAt}
	for i := range p.Renewals {
		times = append(times, &p.Renewals[i].At)
	}
	for _, t := range times {
		if !t.IsZero() {
			*t = t.Add(-ahead)
		}
	}
}

// explain adds what follows from the times of the periods about their ends.
func explain(h *api.History) {
	next := h.Now // a time after the end of a period
	for i := range h.Periods {
		p := &h.Periods[i]
		if p.Ended != nil {
			p.Ended.After = latest(p.Acquired.At, p.AliveAt)
			if !next.Before(p.Ended.After) { // otherwise the clocks contradict each other
				p.Ended.Before = next
			}
			p.Ended.How = how(p)
		}
		if !p.Acquired.At.IsZero() {
			next = p.Acquired.At
		}
	}
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func how(p *api.Period) string {
	switch deadline := p.AutoUnlockAt; {
	case p.Ended.How == api.EndOverwritten:
		return api.EndOverwritten
	case deadline.IsZero(), !p.Ended.Before.IsZero() && !p.Ended.Before.After(deadline):
		return api.EndReleased
	case !p.Ended.After.Before(deadline):
		return api.EndLate
	}
	return api.EndRemoved
}

// records adds what the records of removals say: those that there are, which also tell of locks whose revisions
// etcd has compacted, and those of manual unlocks that have ended since. These were written in the transaction
// that deleted the lock, so that they can be read at that revision even after a day.
func (r Reader) records(ctx context.Context, h *api.History) error {
	const maxRecords = 100 // limits the records of a name that are read, those of the newest tokens first
	of := protocol.RecordsOf(r.AuditPrefix, h.Name)
	now, err := r.Store.Get(ctx, []clientv3.Op{clientv3.OpGet(of, clientv3.WithPrefix(), clientv3.WithLimit(maxRecords),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))})
	if err != nil {
		return err
	}
	r.add(h, now[0].Kvs, true)
	for part := range slices.Chunk(slices.Clone(h.Periods), minGets) {
		var gets []clientv3.Op
		for _, p := range part {
			if p.Ended != nil && p.Ended.Revision >= h.FromRevision && p.Ended.At.IsZero() {
				gets = append(gets, clientv3.OpGet(protocol.RecordKey(r.AuditPrefix, h.Name, p.Token), clientv3.WithRev(p.Ended.Revision)))
			}
		}
		then, err := r.Store.Get(ctx, gets)
		if err != nil {
			return err
		}
		for _, answer := range then {
			r.add(h, answer.Kvs, false)
		}
	}
	return nil
}

// add adds what records say of the lock. If they are present ones, it also adds the periods that etcd has compacted.
func (r Reader) add(h *api.History, kvs []*mvccpb.KeyValue, present bool) {
	for _, kv := range kvs {
		prefix, rec, err := records.Parse(kv.Value, kv.ModRevision)
		if err != nil || prefix != r.Store.Layout.Prefix() || rec.Name != h.Name || rec.Trigger == verdict.Ended {
			continue
		}
		rec.By = "" // no daemon was asked
		if present && h.Compacted && rec.Token != 0 && rec.Revision <= h.FromRevision {
			r.insert(h, &rec)
		}
		AddForced(h, []api.Forced{rec})
	}
}

// insert adds the period that a removal ended, as its record tells.
func (r Reader) insert(h *api.History, f *api.Forced) {
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte(f.UUID), Create: f.Token, Mod: f.Token})
	for _, field := range f.Fields {
		if known := protocol.ParseField([]byte(field.Name)); known != protocol.FieldUUID {
			b.Add(protocol.KV{Field: known, Value: []byte(field.Value), Create: f.Token, Mod: f.Token})
		}
	}
	p := period(b.Lock(h.Name), f.Token)
	r.correct(&p)
	p.Ended = &api.Ended{Moment: api.Moment{Revision: f.Revision}, After: latest(p.Acquired.At, p.AliveAt)}
	at, _ := slices.BinarySearchFunc(h.Periods, f.Token, func(p api.Period, token int64) int { return cmp.Compare(token, p.Token) })
	h.Periods = slices.Insert(h.Periods, at, p)
}

// AddForced adds what a daemon, or the record of a removal, knows about the ends: its forced
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

func learn(e *api.Ended, f api.Forced) {
	switch f.Trigger {
	case verdict.Expiry:
		e.How = api.EndExpired
	case verdict.Manual:
		e.How = api.EndManual
	case "", verdict.Presumed: // an unknown client, after the deadline
		if e.How == api.EndManual || e.How == api.EndExpired {
			return
		}
		e.How = api.EndLate
	default:
		return // of what nobody held
	}
	e.At, e.By, e.Replica, e.Who, e.Reason = f.At, f.By, f.Replica, f.Who, f.Reason
}
