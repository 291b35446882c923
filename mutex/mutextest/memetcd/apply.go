package memetcd

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits in bytes: what a client sends, by its default, and what etcd takes.
const (
	maxSendBytes    = 2 << 20
	maxRequestBytes = 3 << 19
	// envelope is what etcd adds to a request for its log, about.
	envelope = 16
)

// apply does what a request asks for, at once. The head is the newest revision of
// the member that was asked.
func (c *Cluster) apply(head int64, req Message) (Message, error) {
	if err := c.admit(req); err != nil {
		return nil, err
	}
	switch r := req.(type) {
	case *pb.RangeRequest:
		if !r.Serializable {
			head = c.rev
		}
		if err := c.check(r.Revision); err != nil {
			return nil, err
		}
		resp := c.rangeAt(r, head)
		resp.Header = c.header(head)
		return resp, nil
	case *pb.PutRequest, *pb.DeleteRangeRequest, *pb.TxnRequest:
		if err := c.possible(req); err != nil {
			return nil, err
		}
		w, header := &write{store: &c.store}, c.header(0)
		resp := w.do(req, header)
		c.commit(w)
		header.Revision = c.rev
		return resp, nil
	case *pb.CompactionRequest:
		if err := c.compact(r.Revision); err != nil {
			return nil, err
		}
		c.wake()
		return &pb.CompactionResponse{Header: c.header(c.rev)}, nil
	case *pb.LeaseGrantRequest:
		return c.grant(r)
	case *pb.LeaseRevokeRequest:
		return c.revoke(r.ID)
	case *pb.LeaseTimeToLiveRequest:
		return c.timeToLive(r), nil
	case *pb.AlarmRequest:
		return c.alarm(r), nil
	}
	return nil, status.Errorf(codes.Unimplemented, "memetcd: %T", req)
}

// admit refuses what etcd refuses before, or instead of, looking at the data.
func (c *Cluster) admit(req Message) error {
	if size(req)+envelope > maxRequestBytes {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	if err := valid(req, maxTxnOps); err != nil {
		return err
	}
	full, corrupt := slices.Contains(c.alarms, pb.AlarmType_NOSPACE), slices.Contains(c.alarms, pb.AlarmType_CORRUPT)
	switch r := req.(type) {
	case *pb.TxnRequest:
		all := 0
		for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
			puts, _, err := overlaps(branch)
			if err != nil {
				return err
			}
			all += len(puts)
		}
		writes := func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil } // without, it needs no entry in etcd's log
		full, corrupt = full && all > 0, corrupt && slices.ContainsFunc(slices.Concat(r.Success, r.Failure), writes)
	case *pb.DeleteRangeRequest, *pb.LeaseRevokeRequest, *pb.CompactionRequest:
		full = false
	case *pb.PutRequest, *pb.LeaseGrantRequest:
	default:
		return nil
	}
	switch {
	case corrupt:
		return rpctypes.ErrGRPCCorrupt
	case full:
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

// possible returns why a write, or an operation of one, cannot be done, before any is.
func (c *Cluster) possible(req Message) error {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return c.check(r.Revision)
	case *pb.PutRequest:
		if r.Lease != 0 && c.leases[r.Lease] == nil {
			return rpctypes.ErrGRPCLeaseNotFound
		}
	case *pb.TxnRequest:
		_, ops := c.branch(r)
		for _, op := range ops {
			if err := c.possible(inner(op)); err != nil {
				return err
			}
		}
	}
	return nil
}

// do answers with a header, in which it writes the revision.
func (w *write) do(req Message, header *pb.ResponseHeader) Message {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return w.rangeAt(r, w.now())
	case *pb.PutRequest:
		resp := &pb.PutResponse{Header: header}
		if prev := w.put(string(r.Key), r.Value, r.Lease); r.PrevKv {
			resp.PrevKv = prev
		}
		header.Revision = w.now()
		return resp
	case *pb.DeleteRangeRequest:
		gone := w.delete(spanOf(r.Key, r.RangeEnd))
		resp := &pb.DeleteRangeResponse{Header: header, Deleted: int64(len(gone))}
		if r.PrevKv {
			resp.PrevKvs = gone
		}
		header.Revision = w.now()
		return resp
	}
	succeeded, ops := w.branch(req.(*pb.TxnRequest))
	resp := &pb.TxnResponse{Header: header, Succeeded: succeeded}
	for _, op := range ops {
		resp.Responses = append(resp.Responses, wrap(w.do(inner(op), &pb.ResponseHeader{})))
	}
	return resp
}

func wrap(resp Message) *pb.ResponseOp {
	switch r := resp.(type) {
	case *pb.RangeResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: r}}
	case *pb.PutResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: r}}
	case *pb.DeleteRangeResponse:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: r}}
	}
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: resp.(*pb.TxnResponse)}}
}

func (c *Cluster) alarm(r *pb.AlarmRequest) *pb.AlarmResponse {
	resp := &pb.AlarmResponse{Header: c.header(c.rev)}
	if r.Action == pb.AlarmRequest_GET {
		resp.Alarms = c.alarmMembers()
	} else if r.Alarm != pb.AlarmType_NONE && c.setAlarm(r.Alarm, r.Action == pb.AlarmRequest_ACTIVATE) {
		resp.Alarms = []*pb.AlarmMember{{MemberID: r.MemberID, Alarm: r.Alarm}}
	}
	return resp
}

// maxTxnOps is etcd's limit on the compares, and on the operations of a branch; a
// nested transaction has what the level above leaves.
const maxTxnOps = 128

// valid checks what can be checked without the store.
func valid(req Message, budget int) error {
	if r, keyed := req.(interface{ GetKey() []byte }); keyed && len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	switch r := req.(type) {
	case *pb.PutRequest:
		if r.IgnoreValue || r.IgnoreLease {
			return status.Error(codes.Unimplemented, "memetcd: a put that keeps the value or the lease")
		}
	case *pb.TxnRequest:
		if budget -= max(len(r.Compare), len(r.Success), len(r.Failure)); budget < 0 {
			return rpctypes.ErrGRPCTooManyOps
		}
		for _, c := range r.Compare {
			if len(c.Key) == 0 {
				return rpctypes.ErrGRPCEmptyKey
			}
		}
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if err := valid(inner(op), budget); err != nil {
				return err
			}
		}
	case nil:
		return rpctypes.ErrGRPCKeyNotFound
	}
	return nil
}

// overlaps refuses a transaction that could put one key twice, or put and delete it. It returns all
// that the operations may put and delete, at any depth. The two branches of a nested transaction
// exclude each other, but only with regard to puts.
func overlaps(ops []*pb.RequestOp) (puts map[string]bool, deletes []span, err error) {
	puts = make(map[string]bool)
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			deletes = append(deletes, spanOf(d.Key, d.RangeEnd))
		}
	}
	add := func(key string, exclusive map[string]bool) error {
		if puts[key] && !exclusive[key] || slices.ContainsFunc(deletes, func(d span) bool { return d.contains(key) }) {
			return rpctypes.ErrGRPCDuplicateKey
		}
		puts[key] = true
		return nil
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		var other map[string]bool
		var both []span
		for _, branch := range [][]*pb.RequestOp{nested.Success, nested.Failure} {
			put, deleted, err := overlaps(branch)
			if err != nil {
				return nil, nil, err
			}
			for key := range put {
				if err := add(key, other); err != nil {
					return nil, nil, err
				}
			}
			other, both = put, append(both, deleted...)
		}
		deletes = append(deletes, both...)
	}
	for _, op := range ops {
		if p := op.GetRequestPut(); p != nil {
			if err := add(string(p.Key), nil); err != nil {
				return nil, nil, err
			}
		}
	}
	return puts, deletes, nil
}

// branch returns the operations of a transaction that are carried out. While it writes, nested ones still
// see the revision before it.
func (s *store) branch(r *pb.TxnRequest) (succeeded bool, ops []*pb.RequestOp) {
	if slices.ContainsFunc(r.Compare, func(c *pb.Compare) bool { return !s.compare(c) }) {
		return false, r.Failure
	}
	return true, r.Success
}

// compare holds where it holds for every key of its range. Where there is none it
// compares with zeros, and a value with nothing never holds.
func (s *store) compare(c *pb.Compare) bool {
	kvs := s.get(spanOf(c.Key, c.RangeEnd), s.rev)
	if len(kvs) == 0 {
		return c.Target != pb.Compare_VALUE && holds(c, &mvccpb.KeyValue{})
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !holds(c, kv) })
}

func holds(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var sign int
	switch c.Target {
	case pb.Compare_VALUE:
		sign = bytes.Compare(kv.Value, c.GetValue())
	case pb.Compare_CREATE:
		sign = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		sign = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		sign = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_LEASE:
		sign = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return sign == 0
	case pb.Compare_NOT_EQUAL:
		return sign != 0
	case pb.Compare_GREATER:
		return sign > 0
	}
	return sign < 0
}
