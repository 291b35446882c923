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

// maxTxnOps is etcd's limit on the compares, and on the operations of a branch; a
// nested transaction has what the level above leaves.
const maxTxnOps = 128

// valid checks what can be checked without the store.
func valid(req Message, budget int) error {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return present(r.Key)
	case *pb.DeleteRangeRequest:
		return present(r.Key)
	case *pb.PutRequest:
		if len(r.Key) > 0 && (r.IgnoreValue || r.IgnoreLease) {
			return status.Error(codes.Unimplemented, "memetcd: a put that keeps the value or the lease")
		}
		return present(r.Key)
	case *pb.TxnRequest:
		if budget -= max(len(r.Compare), len(r.Success), len(r.Failure)); budget < 0 {
			return rpctypes.ErrGRPCTooManyOps
		}
		for _, c := range r.Compare {
			if err := present(c.Key); err != nil {
				return err
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

func present(key []byte) error {
	if len(key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// overlaps refuses a transaction that could put one key twice, or put and delete it. It returns all that the
// operations may put and delete, at any depth.
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
