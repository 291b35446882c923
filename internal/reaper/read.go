package reaper

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// record is a lock as it was read, whole, right before its verdict.
type record struct {
	lock.Lock
	// fields are its keys with their values; without some that are unknown where
	// there are too many. kept are the bytes of those that a survey kept.
	fields []field
	kept   int
	// spans cover its keys, and none of another's; empty where that takes too
	// many.
	spans []span
}

// field is one key of a record.
type field struct {
	name  string
	value []byte
}

// readLimit is the number of keys up to which a lock, with all that is nested
// in it, is read at once.
const readLimit = 64

// Store reads locks whole, and removes single ones. It is a value, and may be
// used concurrently.
type Store struct {
	KV     clientv3.KV
	Layout lock.Layout
	// RequestTimeout bounds each request.
	RequestTimeout time.Duration
}

// read reads locks whole, in one transaction where they are small.
func (st Store) read(ctx context.Context, candidates []Candidate) ([]record, error) {
	records := make([]record, len(candidates))
	var small []int
	var gets []clientv3.Op
	for i := range candidates {
		if !candidates[i].Large() && candidates[i].Keys < readLimit {
			from, end := st.Layout.Range(candidates[i].Name)
			// One more than it has shows whether there is more; no value of what
			// is nested comes along but that one.
			limit := min(readLimit, int64(candidates[i].Keys)+1)
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
		records[i], whole[i] = st.fromRange(candidates[i].Name, answers[n])
	}
	for i := range candidates {
		if whole[i] {
			continue
		}
		if records[i], err = st.readOne(ctx, &candidates[i]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// get sends reads in one transaction, so that they show one revision.
func (st Store) get(ctx context.Context, gets []clientv3.Op) ([]*etcdserverpb.RangeResponse, error) {
	if len(gets) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, st.RequestTimeout)
	defer cancel()
	resp, err := st.KV.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, err
	}
	answers := make([]*etcdserverpb.RangeResponse, len(gets))
	for i, op := range resp.Responses {
		answers[i] = op.GetResponseRange()
	}
	return answers, nil
}

// fromRange makes a record of a lock's range. It is whole unless the range
// holds more keys than were asked for.
func (st Store) fromRange(name string, resp *etcdserverpb.RangeResponse) (rec record, whole bool) {
	if resp.More {
		return record{}, false
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

// readOne reads a lock that has big values, many keys, or many names nested in
// it: its known fields one by one, and then, at the same revision, the places
// of all its keys.
func (st Store) readOne(ctx context.Context, c *Candidate) (record, error) {
	var gets []clientv3.Op
	var keys []span
	for f := lock.FieldUnknown + 1; f <= lock.FieldUUID; f++ {
		key := st.Layout.Key(c.Name, f.String())
		gets = append(gets, clientv3.OpGet(key))
		keys = append(keys, span{from: key})
	}
	answers, err := st.get(ctx, gets)
	if err != nil {
		return record{}, err
	}
	var rec record
	s := newSurveyor(st.Layout, c.Name)
	for _, resp := range answers {
		for _, kv := range resp.Kvs {
			s.add(kv)
			rec.fields = append(rec.fields, st.field(c.Name, kv))
		}
	}
	rec.Lock, _ = s.finish()
	pages := surveyPages
	if rec.Keys == c.Keys {
		// There are no others, so that these keys will do where so much is
		// nested that to look between is dear. One that is not a known field
		// and comes meanwhile is then left behind.
		pages, rec.spans = crowdPages, keys
	}
	return st.survey(ctx, rec, answers[0].Header.Revision, pages)
}
