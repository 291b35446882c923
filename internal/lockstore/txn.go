package lockstore

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// maxTxnOps is etcd's default limit on the compares, and on the operations, of
// a transaction. Operations of nested transactions count on top of those of
// the level above. A server may allow fewer: then batches are halved.
const maxTxnOps = 128

// maxSpans is how many spans one deletion can have, beside its two other
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

// deletion deletes one lock if it still is the one that was read.
type deletion struct {
	compares []clientv3.Cmp
	deletes  []clientv3.Op
}

// expired guards the deletion of a record's spans by its uuid (or that there is
// none), its deadline, and the newest revision of its keys (S1). There is no put,
// and no other branch (S5).
func (st Store) expired(r *Record) deletion {
	uuid := st.Layout.Key(r.Name, lock.FieldUUID.String())
	if r.Token == 0 {
		return r.deletion(clientv3.Compare(clientv3.Version(uuid), "=", 0))
	}
	deadline := st.Layout.Key(r.Name, lock.FieldAutoUnlockAt.String())
	return r.deletion(
		clientv3.Compare(clientv3.Value(uuid), "=", r.UUID()),
		clientv3.Compare(clientv3.Value(deadline), "=", r.AutoUnlockText()))
}

// manual guards the deletion that a person asked for by the uuid they gave, and by
// the newest revision as well: no key is deleted that was not read, least of all
// one of another lock.
func (st Store) manual(r *Record, uuid string) deletion {
	return r.deletion(clientv3.Compare(clientv3.Value(st.Layout.Key(r.Name, lock.FieldUUID.String())), "=", uuid))
}

// deletion deletes the record's spans if the compares hold and no key in them is
// newer than the record.
func (r *Record) deletion(compares ...clientv3.Cmp) deletion {
	d := deletion{compares: compares}
	for _, s := range r.spans {
		newest := clientv3.Compare(clientv3.ModRevision(s.from), "<", r.Revision+1)
		if s.end != "" {
			newest = newest.WithRange(s.end)
		}
		d.compares = append(d.compares, newest)
		d.deletes = append(d.deletes, clientv3.OpDelete(s.from, s.option()...))
	}
	return d
}

// cost is how much of a transaction's budget the deletion takes: its compares,
// which are more than its deletes.
func (r *Record) cost() int {
	if r.Token == 0 {
		return len(r.spans) + 1
	}
	return len(r.spans) + 2
}

// Fits reports whether one transaction can delete the records.
func Fits(records ...Record) bool {
	costliest := 0
	for i := range records {
		if len(records[i].spans) == 0 {
			return false
		}
		costliest = max(costliest, records[i].cost())
	}
	if len(records) == 1 {
		return costliest <= maxTxnOps
	}
	return len(records)+costliest <= maxTxnOps
}

// Result is what a transaction did to one lock.
type Result struct {
	// Deleted counts the keys deleted: 0 where the lock was modified or released
	// concurrently.
	Deleted int64
	// Revision is that of the transaction.
	Revision int64
}

// Delete deletes each of the records, which must fit into one transaction, if it
// still is the lock that was read. The results are in the order of the records.
// Classify says what an error means.
func (st Store) Delete(ctx context.Context, records ...Record) ([]Result, error) {
	deletions := make([]deletion, len(records))
	for i := range records {
		deletions[i] = st.expired(&records[i])
	}
	return st.commit(ctx, deletions)
}

// commit sends one transaction. Several deletions are nested in it, each with its
// own compares, all of which see the state before.
func (st Store) commit(ctx context.Context, deletions []deletion) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, st.RequestTimeout)
	defer cancel()
	txn := st.KV.Txn(ctx)
	if len(deletions) == 1 {
		txn = txn.If(deletions[0].compares...).Then(deletions[0].deletes...)
	} else {
		nested := make([]clientv3.Op, len(deletions))
		for i, d := range deletions {
			nested[i] = clientv3.OpTxn(d.compares, d.deletes, nil)
		}
		txn = txn.Then(nested...)
	}
	resp, err := txn.Commit()
	if err != nil {
		return nil, st.explain(err)
	}
	results := []Result{newResult(resp, resp.Header.Revision)}
	if len(deletions) > 1 {
		results = results[:0]
		for _, r := range resp.Responses {
			results = append(results, newResult((*clientv3.TxnResponse)(r.GetResponseTxn()), resp.Header.Revision))
		}
	}
	return results, nil
}

func newResult(resp *clientv3.TxnResponse, revision int64) Result {
	r := Result{Revision: revision}
	for _, op := range resp.Responses {
		r.Deleted += op.GetResponseDeleteRange().GetDeleted()
	}
	return r
}
