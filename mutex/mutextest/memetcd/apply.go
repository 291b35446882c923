package memetcd

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
