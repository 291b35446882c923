package memetcd

import (
	"bytes"
	"cmp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxTxnOps is etcd's limit on the compares, and on the operations of a branch; a
// nested transaction has what the level above leaves.
const maxTxnOps = 128

// checkTxn checks what can be checked without the store.
func checkTxn(r *pb.TxnRequest, budget int) error {
	budget -= max(len(r.Compare), len(r.Success), len(r.Failure))
	if budget < 0 {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if err := checkOp(op, budget); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, budget int) error {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return checkKey(op.RequestRange.Key)
	case *pb.RequestOp_RequestPut:
		return checkPut(op.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkKey(op.RequestDeleteRange.Key)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(op.RequestTxn, budget)
	}
	return rpctypes.ErrGRPCKeyNotFound
}

func checkKey(key []byte) error {
	if len(key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue, r.IgnoreLease:
		return status.Error(codes.Unimplemented, "memetcd: a put that keeps the value or the lease")
	}
	return nil
}

// overlaps refuses a transaction that could put one key twice, or put and delete it.
// The two branches of a nested transaction exclude each other, but only with regard
// to puts.
func overlaps(ops []*pb.RequestOp) (puts map[string]bool, deletes []span, err error) {
	puts = make(map[string]bool)
	for _, op := range ops {
		if d := op.GetRequestDeleteRange(); d != nil {
			deletes = append(deletes, spanOf(d.Key, d.RangeEnd))
		}
	}
	add := func(key string, exclusive map[string]bool) error {
		if puts[key] && !exclusive[key] {
			return rpctypes.ErrGRPCDuplicateKey
		}
		for _, d := range deletes {
			if d.contains(key) {
				return rpctypes.ErrGRPCDuplicateKey
			}
		}
		puts[key] = true
		return nil
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		then, thenDeletes, err := overlaps(nested.Success)
		if err != nil {
			return nil, nil, err
		}
		or, orDeletes, err := overlaps(nested.Failure)
		if err != nil {
			return nil, nil, err
		}
		for key := range then {
			if err := add(key, nil); err != nil {
				return nil, nil, err
			}
		}
		for key := range or {
			if err := add(key, then); err != nil {
				return nil, nil, err
			}
		}
		deletes = append(append(deletes, thenDeletes...), orDeletes...)
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

// puts reports whether a transaction has a put in any branch at any depth.
func puts(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if op.GetRequestPut() != nil || op.GetRequestTxn() != nil && puts(op.GetRequestTxn()) {
				return true
			}
		}
	}
	return false
}

// readOnly reports whether a transaction has nothing but ranges, and so needs no entry
// in etcd's log.
func readOnly(r *pb.TxnRequest) bool {
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			if op.GetRequestRange() == nil {
				return false
			}
		}
	}
	return true
}

// plan is which branch each transaction takes, decided before anything is written.
type plan struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    map[*pb.TxnRequest]plan
}

func (s *store) plan(r *pb.TxnRequest) plan {
	p := plan{succeeded: true, ops: r.Success, nested: make(map[*pb.TxnRequest]plan)}
	for _, c := range r.Compare {
		if !s.compare(c) {
			p.succeeded, p.ops = false, r.Failure
			break
		}
	}
	for _, op := range p.ops {
		if t := op.GetRequestTxn(); t != nil {
			p.nested[t] = s.plan(t)
		}
	}
	return p
}

// compare holds where it holds for every key of its range. Where there is none it
// compares with zeros, and a value with nothing never holds.
func (s *store) compare(c *pb.Compare) bool {
	kvs := s.get(spanOf(c.Key, c.RangeEnd), s.rev)
	if len(kvs) == 0 {
		return c.Target != pb.Compare_VALUE && holds(c, &mvccpb.KeyValue{})
	}
	for _, kv := range kvs {
		if !holds(c, kv) {
			return false
		}
	}
	return true
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
