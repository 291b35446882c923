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
	"slices"
	"time"

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
	// AuditPrefix is where the records of manual unlocks are.
	AuditPrefix string
	// ExplainAudit adds the missing permission to an error about them.
	ExplainAudit func(error) error
}

// Read reads the history of a lock. The error is that of etcd, or of a name that is not valid; records of
// manual unlocks that cannot be read are only said to be missing.
func (r Reader) Read(ctx context.Context, name string, b Bounds) (api.History, error) {
	h, err := r.walk(ctx, name, b)
	if err != nil {
		return api.History{}, err
	}
	explain(&h)
	if err := r.records(ctx, name, &h); err != nil {
		h.Incomplete = "the records of manual unlocks could not be read: " + api.ErrorText(r.ExplainAudit(err))
	}
	return h, nil
}

// explain adds what follows from the times of the periods about their ends.
func explain(h *api.History) {
	next := h.Now // a time after the end of a period
	for i := range h.Periods {
		p := &h.Periods[i]
		if p.Ended != nil {
			p.Ended.After = later(p.Acquired.At, p.AliveAt)
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// how says how a period ended, as far as its times tell.
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

// records adds what the records of manual unlocks say. The one of an unlock was written in the
// transaction that deleted the lock, so that it can be read at that revision even after a day.
func (r Reader) records(ctx context.Context, name string, h *api.History) error {
	var revisions []int64
	for _, p := range h.Periods {
		if p.Ended != nil {
			revisions = append(revisions, p.Ended.Revision)
		}
	}
	written, err := r.writtenAt(ctx, revisions)
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

// maxWritten limits the keys that writtenAt returns for a revision.
const maxWritten = 4

// writtenAt returns the values of keys below AuditPrefix that were created at one of the revisions,
// each of which etcd must still have, with the one before. It asks etcd's index first, so that
// other keys are not read.
func (r Reader) writtenAt(ctx context.Context, revisions []int64) (map[int64][][]byte, error) {
	prefix, end := r.AuditPrefix, clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.AuditPrefix))
	written := make(map[int64][][]byte)
	for part := range slices.Chunk(revisions, minGets) {
		var gets []clientv3.Op
		for _, revision := range part {
			for _, at := range []int64{revision - 1, revision} {
				gets = append(gets, clientv3.OpGet(prefix, end, clientv3.WithRev(at), clientv3.WithCountOnly()))
			}
		}
		counts, err := r.Store.Get(ctx, gets)
		if err != nil {
			return written, err
		}
		for i, revision := range part {
			if counts[2*i+1].Count <= counts[2*i].Count {
				continue
			}
			answers, err := r.Store.Get(ctx, []clientv3.Op{clientv3.OpGet(prefix, end, clientv3.WithRev(revision),
				clientv3.WithMinModRev(revision), clientv3.WithMaxModRev(revision), clientv3.WithLimit(maxWritten))})
			if err != nil {
				return written, err
			}
			for _, kv := range answers[0].Kvs {
				written[revision] = append(written[revision], kv.Value)
			}
		}
	}
	return written, nil
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
