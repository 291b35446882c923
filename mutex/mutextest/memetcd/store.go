package memetcd

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// store has every key at every revision. Key-values are never changed once they
// are in it, so copies of a store share them.
type store struct {
	rev, compacted int64
	// keys are sorted; each has at least one version.
	keys     []string
	versions map[string][]version
	// log has what happened since the store began, compacted or not: a watcher that
	// has caught up loses nothing to a compaction.
	log []commit
}

// version is a key's value from revision mod on; nil for deleted.
type version struct {
	mod int64
	kv  *mvccpb.KeyValue
}

// commit is what one transaction changed. An event's previous key-value is that of the
// revision before, also where the transaction changed the key twice.
type commit struct {
	rev    int64
	at     time.Time
	events []*mvccpb.Event
}

func (s *store) clone() store {
	c := *s
	c.keys, c.log = slices.Clone(s.keys), slices.Clip(s.log)
	c.versions = maps.Clone(s.versions)
	for key, all := range c.versions {
		c.versions[key] = slices.Clone(all)
	}
	return c
}

// span is a range of keys as etcd's requests give it: end is empty for one key,
// and "\x00" for everything from key on.
type span struct{ key, end string }

func spanOf(key, end []byte) span { return span{string(key), string(end)} }

func (r span) contains(key string) bool {
	switch r.end {
	case "":
		return key == r.key
	case "\x00":
		return key >= r.key
	}
	return key >= r.key && key < r.end
}

func (r span) covers(o span) bool {
	return r.contains(o.key) && (o.end == "" || r.end == "\x00" || r.end != "" && o.end != "\x00" && o.end <= r.end)
}

// get returns the keys of a range as they were at revision rev.
func (s *store) get(r span, rev int64) (kvs []*mvccpb.KeyValue) {
	for _, key := range s.keys[sort.SearchStrings(s.keys, r.key):] {
		if !r.contains(key) {
			break
		}
		if kv := at(s.versions[key], rev); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

func at(all []version, rev int64) *mvccpb.KeyValue {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].mod <= rev {
			return all[i].kv
		}
	}
	return nil
}

func (s *store) check(rev int64) error {
	switch {
	case rev > s.rev:
		return rpctypes.ErrGRPCFutureRev
	case rev > 0 && rev < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

func (s *store) compact(rev int64) error {
	switch {
	case rev <= s.compacted:
		return rpctypes.ErrGRPCCompacted
	case rev > s.rev:
		return rpctypes.ErrGRPCFutureRev
	}
	s.compacted = rev
	s.keys = slices.DeleteFunc(s.keys, func(key string) bool {
		all := s.versions[key]
		for len(all) > 1 && all[1].mod <= rev || len(all) > 0 && all[0].kv == nil && all[0].mod <= rev {
			all = all[1:]
		}
		s.versions[key] = all
		if len(all) == 0 {
			delete(s.versions, key)
		}
		return len(all) == 0
	})
	return nil
}

// write is one transaction's view of the store: it reads what it has written, at a revision that the store has
// when it ends.
type write struct {
	*store
	events []*mvccpb.Event
}

// now is the revision at which the transaction reads.
func (w *write) now() int64 {
	if len(w.events) > 0 {
		return w.rev + 1
	}
	return w.rev
}

func (w *write) put(key string, value []byte, lease int64) (prev *mvccpb.KeyValue) {
	next := &mvccpb.KeyValue{Key: []byte(key), Value: bytes.Clone(value), Lease: lease, ModRevision: w.rev + 1, CreateRevision: w.rev + 1, Version: 1}
	prev = at(w.versions[key], w.now())
	if prev != nil {
		next.CreateRevision, next.Version = prev.CreateRevision, prev.Version+1
	}
	w.change(key, next, &mvccpb.Event{Type: clientv3.EventTypePut, Kv: next, PrevKv: at(w.versions[key], w.rev)})
	return prev
}

func (w *write) delete(r span) (gone []*mvccpb.KeyValue) {
	gone = w.get(r, w.now())
	for _, kv := range gone {
		tombstone := &mvccpb.KeyValue{Key: kv.Key, ModRevision: w.rev + 1}
		before := at(w.versions[string(kv.Key)], w.rev)
		w.change(string(kv.Key), nil, &mvccpb.Event{Type: clientv3.EventTypeDelete, Kv: tombstone, PrevKv: before})
	}
	return gone
}

func (w *write) change(key string, kv *mvccpb.KeyValue, ev *mvccpb.Event) {
	if _, known := w.versions[key]; !known {
		i := sort.SearchStrings(w.keys, key)
		w.keys = slices.Insert(w.keys, i, key)
	}
	w.versions[key] = append(w.versions[key], version{w.rev + 1, kv})
	w.events = append(w.events, ev)
}

// rangeAt answers a range request whose newest revision is head.
func (s *store) rangeAt(r *pb.RangeRequest, head int64) *pb.RangeResponse {
	rev := head
	if r.Revision > 0 {
		rev = r.Revision
	}
	kvs := s.get(spanOf(r.Key, r.RangeEnd), rev)
	resp := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: head}, Count: int64(len(kvs))}
	if r.CountOnly {
		return resp
	}
	kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision || kv.ModRevision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision || kv.CreateRevision < r.MinCreateRevision
	})
	sortBy(kvs, r)
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, resp.More = kvs[:r.Limit], true
	}
	if r.KeysOnly {
		kvs = keysOnly(kvs, r.SortTarget == pb.RangeRequest_VALUE)
	}
	resp.Kvs = kvs
	return resp
}

// keysOnly drops values. etcd takes keys without values from its index, which has
// no leases, unless it needs the values to sort by.
func keysOnly(kvs []*mvccpb.KeyValue, leases bool) []*mvccpb.KeyValue {
	keys := make([]*mvccpb.KeyValue, len(kvs))
	for i, kv := range kvs {
		keys[i] = &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
		if leases {
			keys[i].Lease = kv.Lease
		}
	}
	return keys
}

// sortBy sorts by what a request asks for; keys come sorted already.
func sortBy(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) {
	if r.SortTarget == pb.RangeRequest_KEY && r.SortOrder != pb.RangeRequest_DESCEND {
		return
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		if r.SortOrder == pb.RangeRequest_DESCEND {
			a, b = b, a
		}
		return [...]int{
			pb.RangeRequest_KEY:     bytes.Compare(a.Key, b.Key),
			pb.RangeRequest_VERSION: cmp.Compare(a.Version, b.Version),
			pb.RangeRequest_CREATE:  cmp.Compare(a.CreateRevision, b.CreateRevision),
			pb.RangeRequest_MOD:     cmp.Compare(a.ModRevision, b.ModRevision),
			pb.RangeRequest_VALUE:   bytes.Compare(a.Value, b.Value),
		}[r.SortTarget]
	})
}
