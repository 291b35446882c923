package reaper

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// maxTxnOps is etcd's default limit on the compares, and on the operations, of
// a transaction. Operations of nested transactions count on top of those of
// the level above. A server may allow less: then batches are halved.
const maxTxnOps = 128

// maxSpans is how many spans one removal can have, beside its two other
// compares.
const maxSpans = maxTxnOps - 2

// span is a range of keys, all of which belong to one lock; end is exclusive,
// and empty for the one key from.
type span struct{ from, end string }

func (s span) option() []clientv3.OpOption {
	if s.end == "" {
		return nil
	}
	return []clientv3.OpOption{clientv3.WithRange(s.end)}
}

// removal is what it takes to delete one lock if it still is the one that the
// verdict was made on.
type removal struct {
	compares []clientv3.Cmp
	deletes  []clientv3.Op
}

// newRemoval guards the deletion of a lock's spans by its uuid (or that there
// is none), its deadline, and the newest revision of its keys (S1). There is no
// put, and no other branch (S5).
func newRemoval(layout lock.Layout, l *lock.Lock, spans []span) removal {
	var r removal
	uuid := layout.Key(l.Name, lock.FieldUUID.String())
	if l.Token == 0 {
		r.compares = append(r.compares, clientv3.Compare(clientv3.Version(uuid), "=", 0))
	} else {
		deadline := layout.Key(l.Name, lock.FieldAutoUnlockAt.String())
		r.compares = append(r.compares,
			clientv3.Compare(clientv3.Value(uuid), "=", l.UUID()),
			clientv3.Compare(clientv3.Value(deadline), "=", l.AutoUnlockText()))
	}
	r.take(spans, l.Revision)
	return r
}

// newUnlock guards the deletion that a person asked for by the uuid, which must
// be the one they gave, and by the newest revision too: so nothing goes that was
// not there when the lock was read, least of all a key of another lock.
func newUnlock(layout lock.Layout, rec record, uuid string) removal {
	var r removal
	r.compares = append(r.compares, clientv3.Compare(clientv3.Value(layout.Key(rec.Name, lock.FieldUUID.String())), "=", uuid))
	r.take(rec.spans, rec.Revision)
	return r
}

// take adds spans, no key of which may be newer than a revision.
func (r *removal) take(spans []span, revision int64) {
	for _, s := range spans {
		newest := clientv3.Compare(clientv3.ModRevision(s.from), "<", revision+1)
		if s.end != "" {
			newest = newest.WithRange(s.end)
		}
		r.compares = append(r.compares, newest)
		r.deletes = append(r.deletes, clientv3.OpDelete(s.from, s.option()...))
	}
}

// cost is what the removal takes of a level's budget.
func (r removal) cost() int { return max(len(r.compares), len(r.deletes)) }

// fits tells whether removals can go nested in one transaction.
func fits(count, costliest int) bool { return count+costliest <= maxTxnOps }

// result is what a transaction did to one lock.
type result struct {
	matched  bool
	deleted  int64
	revision int64
}

// newTxn puts removals into one transaction: nested where they are several,
// each with its own compares, all of which see the state before.
func newTxn(txn clientv3.Txn, removals []removal) clientv3.Txn {
	if len(removals) == 1 {
		return txn.If(removals[0].compares...).Then(removals[0].deletes...)
	}
	nested := make([]clientv3.Op, len(removals))
	for i, r := range removals {
		nested[i] = clientv3.OpTxn(r.compares, r.deletes, nil)
	}
	return txn.Then(nested...)
}

// results reads the answer to newTxn.
func results(resp *clientv3.TxnResponse, removals int) []result {
	if removals == 1 {
		return []result{newResult(resp, resp.Header.Revision)}
	}
	all := make([]result, removals)
	for i, r := range resp.Responses {
		all[i] = newResult((*clientv3.TxnResponse)(r.GetResponseTxn()), resp.Header.Revision)
	}
	return all
}

func newResult(resp *clientv3.TxnResponse, revision int64) result {
	r := result{matched: resp.Succeeded, revision: revision}
	for _, op := range resp.Responses {
		r.deleted += op.GetResponseDeleteRange().GetDeleted()
	}
	return r
}
