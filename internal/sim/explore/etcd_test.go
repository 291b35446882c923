package explore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

const prefix, pausePrefix = "/l/", "/p/"

// server is etcd as far as removals depend on it: keys, revisions, and requests in one order.
type server struct {
	mu       sync.Mutex
	revision int64
	kvs      map[string]*mvccpb.KeyValue // never modified in place
	stopped  bool
	alarm    bool
	changed  func(events []*mvccpb.Event)
	removing func(keys []string) // before they are
}

// commit writes keys in one revision, or deletes those without a value.
func (s *server) commit(fields map[string]string) {
	s.revision++
	var events []*mvccpb.Event
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(fields[key]), CreateRevision: s.revision, ModRevision: s.revision}
		if fields[key] == "" {
			delete(s.kvs, key)
			events = append(events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: kv})
			continue
		}
		if before := s.kvs[key]; before != nil {
			kv.CreateRevision = before.CreateRevision
		}
		s.kvs[key] = kv
		events = append(events, &mvccpb.Event{Kv: kv})
	}
	s.changed(events)
}

// remove deletes keys in one revision.
func (s *server) remove(keys []string) {
	gone := make(map[string]string)
	for _, k := range keys {
		gone[k] = ""
	}
	s.commit(gone)
}

// within returns the keys of a range, in their order.
func (s *server) within(key, end string) (keys []string) {
	for k := range s.kvs {
		if k == key || k > key && k < end {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (s *server) holds(c *pb.Compare) bool {
	switch c.Target {
	case pb.Compare_VALUE:
		kv := s.kvs[string(c.Key)]
		return kv != nil && string(kv.Value) == string(c.GetValue())
	case pb.Compare_MOD: // less
		newer := func(k string) bool { return s.kvs[k].ModRevision >= c.GetModRevision() }
		return !slices.ContainsFunc(s.within(string(c.Key), string(c.RangeEnd)), newer)
	}
	return false
}

// execute executes a transaction of the daemon: these have no other branch.
func (s *server) execute(r *pb.TxnRequest) *pb.TxnResponse {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: s.revision}}
	if slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !s.holds(c) }) {
		return resp
	}
	resp.Succeeded = true
	for _, op := range r.Success {
		out := &pb.ResponseOp{}
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestTxn:
			out.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: s.execute(op.RequestTxn)}
		case *pb.RequestOp_RequestRange:
			got := &pb.RangeResponse{Header: resp.Header}
			for _, k := range s.within(string(op.RequestRange.Key), string(op.RequestRange.RangeEnd)) {
				got.Kvs = append(got.Kvs, s.kvs[k])
			}
			out.Response = &pb.ResponseOp_ResponseRange{ResponseRange: got}
		case *pb.RequestOp_RequestDeleteRange:
			keys := s.within(string(op.RequestDeleteRange.Key), string(op.RequestDeleteRange.RangeEnd))
			if len(keys) > 0 {
				s.removing(keys)
				s.remove(keys)
			}
			deleted := &pb.DeleteRangeResponse{Deleted: int64(len(keys))}
			out.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: deleted}
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

// link is a daemon's connection to etcd.
type link struct {
	pb.KVClient
	*server
	// cut keeps what is sent on its way, killed keeps the daemon from sending.
	cut, killed bool
	waiting     []func()
	// stuck is for how long the next removal waits in the client, late for how long it is on its way.
	stuck, late time.Duration
	flying      int // removals that were sent and not executed yet
	out         *without
	tell        func(format string, args ...any)
	// sent is called when a removal departs. What it returns is called right before it is executed.
	sent func() (executes func())
}

func (l *link) held() bool { return l.cut || l.stopped }

// carry carries what has waited.
func (l *link) carry() {
	for !l.held() && len(l.waiting) > 0 {
		l.waiting[0]()
		l.waiting = l.waiting[1:]
	}
}

// pass has f executed, and waits for that.
func (l *link) pass(ctx context.Context, f func()) error {
	done := make(chan struct{})
	l.mu.Lock()
	if !l.killed {
		l.waiting = append(l.waiting, func() { f(); close(done) })
		l.carry()
	}
	l.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Txn implements etcdserverpb.KVClient.
func (l *link) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	answer := make(chan *pb.TxnResponse, 1)
	arrives := func() { answer <- l.execute(r) }
	late := time.Duration(0)
	if r.Success[0].GetRequestTxn() != nil {
		var err error
		if arrives, late, err = l.departs(ctx, r, arrives); err != nil {
			return nil, err
		}
	}
	pass := func() { _ = l.pass(ctx, arrives) }
	if late > 0 {
		time.AfterFunc(late, pass)
	} else {
		pass()
	}
	select {
	case resp := <-answer:
		return resp, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// departs is the departure of a removal. It returns what its arrival does, and how late that is.
func (l *link) departs(ctx context.Context, r *pb.TxnRequest, arrives func()) (func(), time.Duration, error) {
	l.mu.Lock()
	late := l.late
	l.flying++
	if l.stuck > 0 {
		l.tell("a removal waits in the client")
	}
	stuck := l.stuck
	l.mu.Unlock()
	wait(ctx, stuck)
	for _, op := range r.Success {
		if l.out.compare != nil {
			op.GetRequestTxn().Compare = slices.DeleteFunc(op.GetRequestTxn().Compare, l.out.compare)
		}
	}
	var err error
	if !l.out.departure {
		err = etcd.Departs(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || l.killed {
		l.flying--
		return nil, 0, cmp.Or(err, context.Canceled)
	}
	executes := l.sent()
	if late > 0 {
		l.tell("it is on its way for %.3g ticks", late.Seconds())
	}
	return func() { l.flying--; executes(); arrives() }, late, nil
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// AlarmList implements the etcd of a probe.
func (l *link) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	resp := &clientv3.AlarmResponse{}
	err := l.pass(ctx, func() {
		resp.Header = &pb.ResponseHeader{Revision: l.revision}
		if l.alarm {
			resp.Alarms = []*pb.AlarmMember{{Alarm: pb.AlarmType_NOSPACE}}
		}
	})
	if err != nil {
		return nil, err // the answer may still be written
	}
	return resp, nil
}

func split(key string) (name, field string) {
	rest, isLock := strings.CutPrefix(key, prefix)
	if !isLock {
		return "", ""
	}
	name, field, _ = strings.Cut(rest, "/")
	return name, field
}
