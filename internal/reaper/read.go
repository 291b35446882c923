package reaper

import (
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// record is a lock as it was read, whole, right before its verdict.
type record struct {
	lock.Lock
	// fields are its keys with their values, in key order; without those that
	// are unknown where there are too many to be read.
	fields []field
	// spans cover its keys, and nothing else; empty where that takes too many.
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

// read reads locks whole, in one transaction where they are small.
func (r *Reaper) read(ctx context.Context, candidates []Candidate) ([]record, error) {
	records := make([]record, len(candidates))
	var small []int
	var gets []clientv3.Op
	for i := range candidates {
		if !candidates[i].Large() {
			from, end := r.Layout.Range(candidates[i].Name)
			small = append(small, i)
			gets = append(gets, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(readLimit)))
		}
	}
	answers, err := r.get(ctx, gets)
	if err != nil {
		return nil, err
	}
	whole := make(map[int]bool, len(small))
	for n, i := range small {
		records[i], whole[i] = r.fromRange(candidates[i].Name, answers[n])
	}
	for i := range candidates {
		if whole[i] {
			continue
		}
		if records[i], err = r.readOne(ctx, &candidates[i]); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// get sends reads in one transaction, so that they show one revision.
func (r *Reaper) get(ctx context.Context, gets []clientv3.Op) ([]*etcdserverpb.RangeResponse, error) {
	if len(gets) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.RequestTimeout)
	defer cancel()
	resp, err := r.KV.Txn(ctx).Then(gets...).Commit()
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
func (r *Reaper) fromRange(name string, resp *etcdserverpb.RangeResponse) (rec record, whole bool) {
	if resp.More {
		return record{}, false
	}
	s := surveyor{layout: r.Layout, name: name}
	for _, kv := range resp.Kvs {
		if s.add(kv) {
			rec.fields = append(rec.fields, r.field(name, kv))
		}
	}
	rec.Lock, rec.spans = s.finish()
	return rec, true
}

func (r *Reaper) field(name string, kv *mvccpb.KeyValue) field {
	return field{name: string(kv.Key[len(r.Layout.Prefix())+len(name)+1:]), value: kv.Value}
}

// readOne reads a lock that has big values, many keys, or many names nested in
// it: its known fields one by one, and, where the table has counted more keys
// than those, the places of all.
func (r *Reaper) readOne(ctx context.Context, c *Candidate) (record, error) {
	var gets []clientv3.Op
	for f := lock.FieldUnknown + 1; f <= lock.FieldUUID; f++ {
		gets = append(gets, clientv3.OpGet(r.Layout.Key(c.Name, f.String())))
	}
	answers, err := r.get(ctx, gets)
	if err != nil {
		return record{}, err
	}
	var rec record
	s := surveyor{layout: r.Layout, name: c.Name, apart: true}
	for _, resp := range answers {
		for _, kv := range resp.Kvs {
			s.add(kv)
			rec.fields = append(rec.fields, r.field(c.Name, kv))
		}
	}
	rec.Lock, rec.spans = s.finish()
	if rec.Keys == c.Keys {
		return rec, nil
	}
	return r.survey(ctx, rec)
}

// surveyor finds the spans of a lock's own keys among those nested in it and
// those of others, which carry a lease.
type surveyor struct {
	layout lock.Layout
	name   string
	// apart: each key is a span of its own, as what lies between is not known.
	apart bool

	build lock.Builder
	spans []span
	// open: the key before was the lock's own; mixed: some key was not.
	open, mixed bool
}

// add takes the next key in order and tells whether it is the lock's own.
func (s *surveyor) add(kv *mvccpb.KeyValue) (own bool) {
	name, fieldName, valid := s.layout.Split(kv.Key)
	f := lock.ParseField(fieldName)
	if !valid || string(name) != s.name || f == lock.FieldUnknown && kv.Lease != 0 {
		s.open, s.mixed = false, true
		return false
	}
	s.build.Add(lock.KV{Field: f, Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
	key := string(kv.Key)
	if s.open && !s.apart {
		s.spans[len(s.spans)-1].end = key + "\x00"
	} else {
		s.spans = append(s.spans, span{from: key})
	}
	s.open = true
	return true
}

// finish returns the lock and the spans of its keys. Where the range holds
// nothing else, it is one span, so that a key written later is noticed too.
func (s *surveyor) finish() (lock.Lock, []span) {
	if !s.apart && !s.mixed && len(s.spans) > 0 {
		from, end := s.layout.Range(s.name)
		s.spans = []span{{from: from, end: end}}
	}
	return s.build.Lock(s.name), s.spans
}

// A survey reads keys only, page by page, leaping over what is nested. It gives
// up where that takes too long; the lock is then left and counted as a failure.
const (
	surveyPage  = 1_000
	surveyPages = 100
)

// survey finds the places of all keys of a lock of which rec holds the known
// fields.
func (r *Reaper) survey(ctx context.Context, rec record) (record, error) {
	s := surveyor{layout: r.Layout, name: rec.Name}
	from, end := r.Layout.Range(rec.Name)
	for page := 0; ; page++ {
		answers, err := r.get(ctx, []clientv3.Op{
			clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(surveyPage), clientv3.WithKeysOnly()),
		})
		if err != nil {
			return record{}, err
		}
		kvs := answers[0].Kvs
		for _, kv := range kvs {
			s.add(kv)
		}
		if !answers[0].More || len(kvs) == 0 {
			break
		}
		if page == surveyPages || len(s.spans) > maxTxnOps {
			rec.spans = nil
			return rec, nil
		}
		from = behind(string(kvs[len(kvs)-1].Key), from[:len(r.Layout.Prefix())+len(rec.Name)+1])
	}
	all, spans := s.finish()
	rec.spans = spans
	rec.Revision, rec.Keys = max(rec.Revision, all.Revision), all.Keys
	return rec, nil
}

// behind returns where to go on behind key: behind all of its group where it
// is nested.
func behind(key, base string) string {
	if i := strings.IndexByte(key[len(base):], '/'); i >= 0 {
		return key[:len(base)+i] + string(rune('/'+1))
	}
	return key + "\x00"
}
