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
	case *pb.PutRequest:
		return c.alone(&pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}})
	case *pb.DeleteRangeRequest:
		return c.alone(&pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}})
	case *pb.TxnRequest:
		return c.txn(r)
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
	full, corrupt := slices.Contains(c.alarms, pb.AlarmType_NOSPACE), slices.Contains(c.alarms, pb.AlarmType_CORRUPT)
	var bad error
	switch r := req.(type) {
	case *pb.RangeRequest:
		return checkKey(r.Key)
	case *pb.PutRequest:
		bad = checkPut(r)
	case *pb.DeleteRangeRequest:
		bad, full = checkKey(r.Key), false
	case *pb.TxnRequest:
		if bad = checkTxn(r, maxTxnOps); bad == nil {
			_, _, bad = overlaps(r.Success)
		}
		if bad == nil {
			_, _, bad = overlaps(r.Failure)
		}
		full, corrupt = full && puts(r), corrupt && !readOnly(r)
	case *pb.LeaseGrantRequest:
	case *pb.LeaseRevokeRequest, *pb.CompactionRequest:
		full = false
	default:
		return nil
	}
	switch {
	case bad != nil:
		return bad
	case corrupt:
		return rpctypes.ErrGRPCCorrupt
	case full:
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

// alone does a put or a delete outside of a transaction.
func (c *Cluster) alone(op *pb.RequestOp) (Message, error) {
	if err := c.possible(op, plan{}); err != nil {
		return nil, err
	}
	w := c.write()
	resp := w.do(op, plan{})
	c.commit(w)
	if p := resp.GetResponsePut(); p != nil {
		p.Header = c.header(p.Header.Revision)
		return p, nil
	}
	d := resp.GetResponseDeleteRange()
	d.Header = c.header(d.Header.Revision)
	return d, nil
}

func (c *Cluster) txn(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	p := c.plan(r)
	for _, op := range p.ops {
		if err := c.possible(op, p); err != nil {
			return nil, err
		}
	}
	w := c.write()
	resp := w.run(p)
	c.commit(w)
	resp.Header = c.header(c.rev)
	return resp, nil
}

// possible returns why an operation of the plan cannot be done, before any is.
func (c *Cluster) possible(op *pb.RequestOp, p plan) error {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return c.check(op.RequestRange.Revision)
	case *pb.RequestOp_RequestPut:
		if lease := op.RequestPut.Lease; lease != 0 && c.leases[lease] == nil {
			return rpctypes.ErrGRPCLeaseNotFound
		}
	case *pb.RequestOp_RequestTxn:
		nested := p.nested[op.RequestTxn]
		for _, op := range nested.ops {
			if err := c.possible(op, nested); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *write) run(p plan) *pb.TxnResponse {
	resp := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Succeeded: p.succeeded}
	for _, op := range p.ops {
		resp.Responses = append(resp.Responses, w.do(op, p))
	}
	return resp
}

func (w *write) do(op *pb.RequestOp, p plan) *pb.ResponseOp {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: w.rangeAt(op.RequestRange, w.now())}}
	case *pb.RequestOp_RequestPut:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: w.doPut(op.RequestPut)}}
	case *pb.RequestOp_RequestDeleteRange:
		r := op.RequestDeleteRange
		gone := w.delete(spanOf(r.Key, r.RangeEnd))
		resp := &pb.DeleteRangeResponse{Header: &pb.ResponseHeader{Revision: w.now()}, Deleted: int64(len(gone))}
		if r.PrevKv {
			resp.PrevKvs = gone
		}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: resp}}
	}
	nested := w.run(p.nested[op.GetRequestTxn()])
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: nested}}
}

func (w *write) doPut(r *pb.PutRequest) *pb.PutResponse {
	prev := w.put(string(r.Key), r.Value, r.Lease)
	resp := &pb.PutResponse{Header: &pb.ResponseHeader{Revision: w.begin + 1}}
	if r.PrevKv {
		resp.PrevKv = prev
	}
	return resp
}

func (c *Cluster) alarm(r *pb.AlarmRequest) *pb.AlarmResponse {
	resp := &pb.AlarmResponse{Header: c.header(c.rev)}
	switch r.Action {
	case pb.AlarmRequest_GET:
		resp.Alarms = c.alarmMembers()
	default:
		if r.Alarm != pb.AlarmType_NONE && c.setAlarm(r.Alarm, r.Action == pb.AlarmRequest_ACTIVATE) {
			resp.Alarms = []*pb.AlarmMember{{MemberID: r.MemberID, Alarm: r.Alarm}}
		}
	}
	return resp
}
