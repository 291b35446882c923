package sim

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// record finds out which request made which commit: the watch of etcd's store has the commits, the
// answers of requests their revisions. Of a request without an answer it is known what it would write.
type record struct {
	mu      sync.Mutex
	changed *sync.Cond
	applied func(applied)
	sent    map[string]sending // by number
	// arrived are the requests that may be carried out, in order; open of them are being answered.
	arrived []*received
	open    int
	by      map[int64]*received
	commits [][]*mvccpb.Event
	last    int64
	follows bool
}

// sending is a request as its client sent it.
type sending struct {
	link *wire
	req  any
}

type received struct {
	sending
	got any
}

func (r *record) init() {
	r.sent, r.by, r.last, r.changed = make(map[string]sending), make(map[int64]*received), 1, sync.NewCond(&r.mu)
}

// onApply sets a function that is called with all that etcd carries out, in order: commits, and alarm requests, which make none. It must not call
// the etcd, and not keep or change what it is given.
func (r *record) onApply(f func(applied)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = f
}

// number gives a request a number, which its server returns.
func (r *record) number(l *wire, req any) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := strconv.Itoa(len(r.sent))
	r.sent[n] = sending{l, req}
	return n
}

const numberKey = "virtual-request"

// next returns the revision after the newest that was seen.
func (r *record) next() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last + 1
}

// restored forgets what belongs to a history that ended; the other one is at a revision.
func (r *record) restored(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrived, r.commits, r.open, r.last = nil, nil, 0, revision
	clear(r.by)
	r.changed.Broadcast()
}

// follow reads the commits until the watch ends.
func (r *record) follow(watch <-chan mvcc.WatchResponse) {
	r.following(true)
	defer r.following(false)
	for w := range watch {
		r.mu.Lock()
		for _, ev := range w.Events {
			if n := len(r.commits); n > 0 && r.commits[n-1][0].Kv.ModRevision == ev.Kv.ModRevision {
				r.commits[n-1] = append(r.commits[n-1], ev)
			} else {
				r.commits = append(r.commits, []*mvccpb.Event{ev})
			}
			r.last = ev.Kv.ModRevision
		}
		r.flush()
		r.mu.Unlock()
	}
}

func (r *record) following(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follows = on
	r.changed.Broadcast()
}

// intercept sees the requests as the server begins to carry them out, and their answers.
func (r *record) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a := &received{got: req}
	writes := mayWrite(req)
	r.mu.Lock()
	if n := md.Get(numberKey); len(n) > 0 {
		a.sending = r.sent[n[0]]
	}
	if writes {
		r.arrived = append(r.arrived, a)
		r.open++
	}
	r.mu.Unlock()
	resp, err := handle(ctx, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, alarm := req.(*pb.AlarmRequest); alarm && r.applied != nil {
		r.applied(applied{a.link, a.req, err, nil})
	}
	if writes && slices.Contains(r.arrived, a) {
		r.answered(a, resp, err)
	}
	return resp, err
}

// answered is called with the answer to a request that may have written. It returns after the commit was
// reported.
func (r *record) answered(a *received, resp any, err error) {
	var revision int64
	if r.open--; err == nil {
		revision = wrote(resp)
	}
	if revision > 0 {
		r.by[revision] = a
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Unknown: // it may be carried out
	default:
		r.arrived = slices.DeleteFunc(r.arrived, func(o *received) bool { return o == a })
	}
	for r.flush(); r.follows && r.by[revision] == a; {
		r.changed.Wait()
	}
}

// flush reports the commits whose requests are known, or cannot be found out.
func (r *record) flush() {
	for len(r.commits) > 0 {
		events := r.commits[0]
		revision := events[0].Kv.ModRevision
		a := r.by[revision]
		if a == nil && r.open > 0 {
			return
		}
		if a == nil {
			if i := slices.IndexFunc(r.arrived, func(a *received) bool {
				return !slices.ContainsFunc(events, func(ev *mvccpb.Event) bool { return !makes(a.got, ev) })
			}); i >= 0 {
				a = r.arrived[i]
				r.arrived = slices.Delete(r.arrived, i, i+1)
			}
		}
		delete(r.by, revision)
		r.changed.Broadcast()
		r.commits = r.commits[1:]
		if r.applied == nil {
			continue
		}
		out := applied{events: events}
		if a != nil {
			out.from, out.request = a.link, a.req
		}
		r.applied(out)
	}
}

// mayWrite reports whether a request may change keys.
func mayWrite(req any) bool {
	switch r := req.(type) {
	case *pb.PutRequest, *pb.DeleteRangeRequest, *pb.LeaseRevokeRequest:
		return true
	case *pb.TxnRequest:
		return slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil })
	}
	return false
}

// wrote returns the revision that a request made, 0 for none.
func wrote(resp any) int64 {
	switch r := resp.(type) {
	case *pb.PutResponse:
		return r.Header.Revision
	case *pb.DeleteRangeResponse:
		if r.Deleted > 0 {
			return r.Header.Revision
		}
	case *pb.TxnResponse:
		if changed(r) {
			return r.Header.Revision
		}
	}
	return 0
}

func changed(r *pb.TxnResponse) bool {
	return slices.ContainsFunc(r.Responses, func(op *pb.ResponseOp) bool {
		nested := op.GetResponseTxn()
		return op.GetResponsePut() != nil || op.GetResponseDeleteRange().GetDeleted() > 0 || nested != nil && changed(nested)
	})
}

// makes reports whether an operation of a request makes an event.
func makes(req any, ev *mvccpb.Event) bool {
	switch r := req.(type) {
	case *pb.PutRequest:
		return r != nil && ev.Type == mvccpb.Event_PUT && bytes.Equal(r.Key, ev.Kv.Key) && bytes.Equal(r.Value, ev.Kv.Value)
	case *pb.DeleteRangeRequest:
		return r != nil && ev.Type == mvccpb.Event_DELETE && (bytes.Equal(r.Key, ev.Kv.Key) ||
			bytes.Compare(r.Key, ev.Kv.Key) <= 0 && bytes.Compare(ev.Kv.Key, r.RangeEnd) < 0)
	case *pb.TxnRequest:
		return r != nil && slices.ContainsFunc(slices.Concat(r.Success, r.Failure), func(op *pb.RequestOp) bool {
			return makes(op.GetRequestPut(), ev) || makes(op.GetRequestDeleteRange(), ev) || makes(op.GetRequestTxn(), ev)
		})
	}
	return false
}
