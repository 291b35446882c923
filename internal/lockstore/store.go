package lockstore

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// readLimit is the maximum number of keys of a lock, including those of nested names, that are
// read by one range.
const readLimit = 64

// Store reads and deletes locks. It is a plain value, safe for concurrent use.
type Store struct {
	KV     clientv3.KV
	Layout lock.Layout
	// RequestTimeout limits each request.
	RequestTimeout time.Duration
	// Explain adds the missing permission to an error of etcd; nil adds nothing.
	Explain func(error) error
}

func (st Store) explain(err error) error {
	if st.Explain == nil {
		return err
	}
	return st.Explain(err)
}

// Read reads whole locks, the small ones of them in one transaction. Of its arguments it uses
// only the names and the known sizes.
func (st Store) Read(ctx context.Context, locks []lock.Lock) ([]Record, error) {
	records := make([]Record, len(locks))
	var small []int
	var gets []clientv3.Op
	for i := range locks {
		if !locks[i].Large() && locks[i].Keys < readLimit {
			from, end := st.Layout.Range(locks[i].Name)
			// A limit of one more key than are known shows whether there are more, and
			// reads the value of at most one nested key.
			limit := min(readLimit, int64(locks[i].Keys)+1)
			small = append(small, i)
			gets = append(gets, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(limit)))
		}
	}
	answers, err := st.get(ctx, gets)
	if err != nil {
		return nil, err
	}
	whole := make(map[int]bool, len(small))
	for n, i := range small {
		records[i], whole[i] = st.fromRange(locks[i].Name, answers[n])
	}
	for i := range locks {
		if whole[i] {
			continue
		}
		if records[i], err = st.readLarge(ctx, &locks[i]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// get sends reads in one transaction, so that they read one revision.
func (st Store) get(ctx context.Context, gets []clientv3.Op) ([]*etcdserverpb.RangeResponse, error) {
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

// fromRange makes a record from the range of a lock. It is whole unless the range contains
// more keys than the limit.
func (st Store) fromRange(name string, resp *etcdserverpb.RangeResponse) (rec Record, whole bool) {
	if resp.More {
		return Record{}, false
	}
	s := newSurveyor(st.Layout, name)
	for _, kv := range resp.Kvs {
		if s.add(kv) {
			rec.fields = append(rec.fields, st.field(name, kv))
		}
	}
	rec.Lock, rec.spans = s.finish()
	return rec, true
}

func (st Store) field(name string, kv *mvccpb.KeyValue) field {
	return field{name: string(kv.Key[len(st.Layout.Prefix())+len(name)+1:]), value: kv.Value}
}

// readLarge reads a lock with big values, many keys, or many nested names. It reads the known
// fields one by one, and then surveys the keys at the same revision.
func (st Store) readLarge(ctx context.Context, l *lock.Lock) (Record, error) {
	var gets []clientv3.Op
	var keys []span
	for f := lock.FieldUnknown + 1; f <= lock.FieldUUID; f++ {
		key := st.Layout.Key(l.Name, f.String())
		gets = append(gets, clientv3.OpGet(key))
		keys = append(keys, span{from: key})
	}
	answers, err := st.get(ctx, gets)
	if err != nil {
		return Record{}, err
	}
	var rec Record
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
		// The lock has no other keys, so that single keys suffice as spans if a survey of
		// many nested names would take too long. In that case an unknown field that is
		// written before the deletion remains.
		pages, rec.spans = optionalPages, keys
	}
	return st.survey(ctx, rec, answers[0].Header.Revision, pages)
}
