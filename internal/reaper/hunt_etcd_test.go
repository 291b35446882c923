package reaper

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/scan/table"
)

var huntLayout, _ = lock.NewLayout("/l/")

// huntStore is an ideal etcd: revisions, compares and transactions, no more.
type huntStore struct {
	rev     int64
	cluster int
	kvs     map[string]*mvccpb.KeyValue
	log     []huntWrite
}

// huntWrite is what one revision did.
type huntWrite struct {
	rev    int64
	events []table.Event
}

func (s *huntStore) snapshot() huntStore {
	c := huntStore{rev: s.rev, cluster: s.cluster, kvs: make(map[string]*mvccpb.KeyValue), log: slices.Clone(s.log)}
	maps.Copy(c.kvs, s.kvs)
	return c
}

func huntField(key string) (name string, f lock.Field) {
	n, field, _ := huntLayout.Split([]byte(key))
	return string(n), lock.ParseField(field)
}

// put writes fields of a lock in one revision.
func (s *huntStore) put(name string, fields map[string]string) int64 {
	s.rev++
	w := huntWrite{rev: s.rev}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		key := huntLayout.Key(name, f)
		kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(fields[f]), CreateRevision: s.rev, ModRevision: s.rev, Version: 1}
		if old := s.kvs[key]; old != nil {
			kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		}
		s.kvs[key] = kv
		w.events = append(w.events, table.Event{Name: []byte(name), KV: lock.KV{Field: lock.ParseField([]byte(f)),
			Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision}})
	}
	s.log = append(s.log, w)
	return s.rev
}

// within returns the keys of a range in order.
func (s *huntStore) within(from, end []byte) (keys []string) {
	if len(end) == 0 {
		if s.kvs[string(from)] != nil {
			keys = append(keys, string(from))
		}
		return keys
	}
	for k := range s.kvs {
		if k >= string(from) && k < string(end) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// del deletes keys in one revision.
func (s *huntStore) del(keys []string) {
	if len(keys) == 0 {
		return
	}
	s.rev++
	w := huntWrite{rev: s.rev}
	for _, k := range keys {
		delete(s.kvs, k)
		name, f := huntField(k)
		w.events = append(w.events, table.Event{Name: []byte(name), Deleted: true, KV: lock.KV{Field: f, Mod: s.rev}})
	}
	s.log = append(s.log, w)
}

func (s *huntStore) keysOf(name string) []string {
	from, end := huntLayout.Range(name)
	return s.within([]byte(from), []byte(end))
}

// collect returns a lock as a listing would; Keys is 0 where there is none.
func (s *huntStore) collect(name string) lock.Lock {
	var b lock.Builder
	for _, k := range s.keysOf(name) {
		kv := s.kvs[k]
		_, f := huntField(k)
		b.Add(lock.KV{Field: f, Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision})
	}
	return b.Lock(name)
}

func (s *huntStore) list() (locks []lock.Lock) {
	names := make(map[string]bool)
	for k := range s.kvs {
		name, _ := huntField(k)
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		locks = append(locks, s.collect(name))
	}
	return locks
}

func (s *huntStore) holds(c clientv3.Cmp) bool {
	p := c.GetCompare()
	keys := s.within(p.Key, p.RangeEnd)
	if len(keys) == 0 {
		return p.Target != etcdserverpb.Compare_VALUE && huntCompare(p, &mvccpb.KeyValue{})
	}
	for _, k := range keys {
		if !huntCompare(p, s.kvs[k]) {
			return false
		}
	}
	return true
}

func huntCompare(p *etcdserverpb.Compare, kv *mvccpb.KeyValue) bool {
	order := 0
	switch p.Target {
	case etcdserverpb.Compare_VALUE:
		order = bytes.Compare(kv.Value, p.GetValue())
	case etcdserverpb.Compare_MOD:
		order = int(kv.ModRevision - p.GetModRevision())
	case etcdserverpb.Compare_CREATE:
		order = int(kv.CreateRevision - p.GetCreateRevision())
	case etcdserverpb.Compare_VERSION:
		order = int(kv.Version - p.GetVersion())
	}
	switch p.Result {
	case etcdserverpb.Compare_EQUAL:
		return order == 0
	case etcdserverpb.Compare_LESS:
		return order < 0
	case etcdserverpb.Compare_GREATER:
		return order > 0
	}
	return order != 0
}

// huntKV is the store as a reaper sees it.
type huntKV struct {
	clientv3.KV
	r *huntReplica
}

func (kv *huntKV) Txn(context.Context) clientv3.Txn { return &huntTxn{r: kv.r} }

type huntTxn struct {
	r    *huntReplica
	cmps []clientv3.Cmp
	ops  []clientv3.Op
}

func (t *huntTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.cmps = append(t.cmps, c...); return t }
func (t *huntTxn) Then(o ...clientv3.Op) clientv3.Txn { t.ops = append(t.ops, o...); return t }
func (t *huntTxn) Else(...clientv3.Op) clientv3.Txn   { return t }

var errHunt = errors.New("no answer")

// Commit reads at once; a deletion goes through the world, which may answer
// late, or not at all.
func (t *huntTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.ops[0].IsGet() {
		return t.r.readRecords(t)
	}
	return t.r.commit(t)
}

// run executes the transaction. All compares see the state before.
func (t *huntTxn) run(s *huntStore, gone func(name string)) *clientv3.TxnResponse {
	resp := &etcdserverpb.TxnResponse{Header: &etcdserverpb.ResponseHeader{}, Succeeded: true}
	nested := [][2]any{}
	if t.ops[0].IsTxn() {
		for _, op := range t.ops {
			c, then, _ := op.Txn()
			nested = append(nested, [2]any{c, then})
		}
	} else {
		nested = append(nested, [2]any{t.cmps, t.ops})
	}
	oks := make([]bool, len(nested))
	for i, n := range nested {
		oks[i] = true
		for _, c := range n[0].([]clientv3.Cmp) {
			oks[i] = oks[i] && s.holds(c)
		}
	}
	for i, n := range nested {
		r := &etcdserverpb.TxnResponse{Succeeded: oks[i], Header: resp.Header}
		if oks[i] {
			var keys []string
			for _, op := range n[1].([]clientv3.Op) {
				found := s.within(op.KeyBytes(), op.RangeBytes())
				keys = append(keys, found...)
				r.Responses = append(r.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseDeleteRange{
					ResponseDeleteRange: &etcdserverpb.DeleteRangeResponse{Deleted: int64(len(found))}}})
			}
			if len(keys) > 0 {
				gone(strings.Split(keys[0], "/")[2])
			}
			s.del(keys)
		}
		if !t.ops[0].IsTxn() {
			resp = r
			break
		}
		resp.Responses = append(resp.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: r}})
	}
	resp.Header.Revision = s.rev
	return (*clientv3.TxnResponse)(resp)
}

// get answers reads.
func (s *huntStore) get(ops []clientv3.Op) *clientv3.TxnResponse {
	resp := &etcdserverpb.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: s.rev}, Succeeded: true}
	for _, op := range ops {
		r := &etcdserverpb.RangeResponse{Header: resp.Header}
		for _, k := range s.within(op.KeyBytes(), op.RangeBytes()) {
			r.Kvs = append(r.Kvs, s.kvs[k])
		}
		resp.Responses = append(resp.Responses, &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: r}})
	}
	return (*clientv3.TxnResponse)(resp)
}
