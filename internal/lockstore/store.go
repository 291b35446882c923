// Package lockstore reads and deletes single locks in etcd.
//
// Guaranteed, with the names of docs/safety.md:
//
//   - S1: Delete deletes a lock only if it has not changed since it was read: in the
//     transaction that deletes, it has the same uuid, the same auto_unlock_at, and no newer
//     key. Unlock, for manual unlocks, compares the uuid and the newest key.
//   - S4: one transaction deletes all keys of the lock, and no other keys: neither those of
//     nested names, nor keys of other programs, which have a lease.
//   - S5: no transaction has a put, in any branch, except what the caller of Unlock adds.
//
// Not guaranteed: that a lock may be removed, which the caller decides, or that a deletion
// whose error Classify calls ReasonAmbiguous did not happen. The package does not retry,
// except if a holder renews during Unlock.
package lockstore

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// readLimit is the maximum number of keys of a lock, including those of nested names, that are
// read by one range.
const readLimit = 64

// Store reads and deletes locks. It is a plain value, safe for concurrent use.
type Store struct {
	KV     clientv3.KV
	Layout protocol.Layout
	// RequestTimeout limits each request.
	RequestTimeout time.Duration
	// Pauses is the prefix of the pauses that Delete compares; "" compares none.
	Pauses string
	// Explain adds the missing permission to an error of etcd; nil adds nothing.
	Explain func(error) error
}

func (st Store) explain(err error) error {
	if st.Explain == nil {
		return err
	}
	return st.Explain(err)
}

// Read reads locks whole, in one transaction. Those that take more than that are Unread, for
// ReadAlone: their size must delay no other. So are those beyond maxKeys keys, which bounds the answer to 16 MB. Of
// the locks given only the name and what is known of their size count.
func (st Store) Read(ctx context.Context, locks []protocol.Lock) ([]Record, error) {
	began := time.Now()
	records := make([]Record, len(locks))
	var small []int
	var gets []clientv3.Op
	keys := int32(0)
	for i := range locks {
		if !Large(&locks[i]) && keys+locks[i].Keys <= maxKeys {
			keys += locks[i].Keys
			from, end := st.Layout.Range(locks[i].Name)
			// One more than it has shows whether there are more keys.
			limit := clientv3.WithLimit(int64(locks[i].Keys) + 1)
			small = append(small, i)
			gets = append(gets, clientv3.OpGet(from, clientv3.WithRange(end), limit))
		}
	}
	answers, err := st.Get(ctx, gets)
	if err != nil {
		return nil, err
	}
	for n, i := range small {
		if !answers[n].More { // it holds no more keys than were asked for
			records[i] = st.fromRange(locks[i].Name, answers[n])
			records[i].read = began
		}
	}
	return records, nil
}

// Unread reports whether Read left the lock to ReadAlone.
func (r *Record) Unread() bool { return r.Name == "" }

// Large reports whether a lock takes several requests to read: it has big values, or many keys.
func Large(l *protocol.Lock) bool { return l.Large() || l.Keys >= readLimit }

// getFields reads known fields of a lock: together if they are known to be small, otherwise one
// by one, at the revision of the first.
func (st Store) getFields(ctx context.Context, l protocol.Lock, keys []string) ([]*etcdserverpb.RangeResponse, error) {
	if l.Revision > 0 && !l.Large() {
		gets := make([]clientv3.Op, len(keys))
		for i, key := range keys {
			gets[i] = clientv3.OpGet(key)
		}
		return st.Get(ctx, gets)
	}
	var answers []*etcdserverpb.RangeResponse
	var at []clientv3.OpOption
	for _, key := range keys {
		answer, err := st.Get(ctx, []clientv3.Op{clientv3.OpGet(key, at...)})
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer...)
		at = []clientv3.OpOption{clientv3.WithRev(answers[0].Header.Revision)}
	}
	return answers, nil
}

// Get sends reads in one transaction, so that they show one revision, and returns the answer to each.
func (st Store) Get(ctx context.Context, gets []clientv3.Op) ([]*etcdserverpb.RangeResponse, error) {
	if len(gets) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, st.RequestTimeout)
	defer cancel()
	resp, err := st.KV.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, st.explain(err)
	}
	answers := make([]*etcdserverpb.RangeResponse, len(gets))
	for i, op := range resp.Responses {
		answers[i] = op.GetResponseRange()
	}
	return answers, nil
}

func (st Store) fromRange(name string, resp *etcdserverpb.RangeResponse) (rec Record) {
	s := newSurveyor(st.Layout, name)
	for _, kv := range resp.Kvs {
		if s.add(kv) {
			rec.fields = append(rec.fields, st.field(name, kv))
		}
	}
	rec.Lock, rec.spans = s.finish()
	return rec
}

func (st Store) field(name string, kv *mvccpb.KeyValue) field {
	return field{name: string(kv.Key[len(st.Layout.Prefix())+len(name)+1:]), value: kv.Value}
}

// readLarge reads a lock whole that has big values, many keys, or names nested in it: its known
// fields and then, at the same revision, which keys it has. It takes up to some thousand requests.
func (st Store) readLarge(ctx context.Context, l protocol.Lock) (Record, error) {
	began := time.Now()
	var keys []string
	var spans []span
	for f := protocol.FieldUnknown + 1; f <= protocol.FieldUUID; f++ {
		key := st.Layout.Key(l.Name, f.String())
		keys = append(keys, key)
		spans = append(spans, span{from: key})
	}
	answers, err := st.getFields(ctx, l, keys)
	if err != nil {
		return Record{}, err
	}
	rec := Record{read: began}
	s := newSurveyor(st.Layout, l.Name)
	for _, resp := range answers {
		for _, kv := range resp.Kvs {
			s.add(kv)
			rec.fields = append(rec.fields, st.field(l.Name, kv))
		}
	}
	rec.Lock, _ = s.finish()
	pages := surveyPages
	if rec.Keys == l.Keys {
		// There are no others, so that these keys suffice where so much is nested that a survey of
		// the gaps is expensive. An unknown field that is written meanwhile then stays.
		pages, rec.spans = optionalPages, spans
	}
	return st.survey(ctx, rec, answers[0].Header.Revision, pages)
}
