package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// install puts the mender between the client and its callers. The error of a streamed
// listing cannot be replaced there: see stream.
func (m *mender) install(c *clientv3.Client) {
	c.KV = kv{c.KV, m}
	c.Lease = lease{c.Lease, m}
	c.Maintenance = maintenance{c.Maintenance, m}
}

type kv struct {
	clientv3.KV
	*mender
}

func (k kv) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := k.KV.Get(ctx, key, opts...)
	if err != nil {
		err = k.explain(err, clientv3.OpGet(key, opts...))
	}
	return resp, err
}

func (k kv) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := k.KV.Put(ctx, key, value, opts...)
	if err != nil {
		err = k.explain(err, clientv3.OpPut(key, "", opts...))
	}
	return resp, err
}

func (k kv) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	resp, err := k.KV.Delete(ctx, key, opts...)
	if err != nil {
		err = k.explain(err, clientv3.OpDelete(key, opts...))
	}
	return resp, err
}

func (k kv) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	resp, err := k.KV.Do(ctx, op)
	return resp, k.explain(err, op)
}

func (k kv) Txn(ctx context.Context) clientv3.Txn {
	return &txn{Txn: k.KV.Txn(ctx), mender: k.mender}
}

// txn remembers what it is made of. As with clientv3's, it belongs to one goroutine.
type txn struct {
	clientv3.Txn
	*mender
	compares []clientv3.Cmp
	ops      []clientv3.Op
}

func (t *txn) If(compares ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.compares = t.Txn.If(compares...), append(t.compares, compares...)
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Then(ops...), append(t.ops, ops...)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Else(ops...), append(t.ops, ops...)
	return t
}

func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	return resp, t.explain(err, clientv3.OpTxn(t.compares, t.ops, nil))
}

type lease struct {
	clientv3.Lease
	*mender
}

func (l lease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	resp, err := l.Lease.Grant(ctx, ttl)
	return resp, l.explain(err)
}

type maintenance struct {
	clientv3.Maintenance
	*mender
}

func (m maintenance) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	resp, err := m.Maintenance.AlarmList(ctx)
	return resp, m.explain(err)
}

// rangeStream is the one stream that is refused by an error; the refusal of a watch is
// part of an answer.
const rangeStream = "/etcdserverpb.KV/RangeStream"

// stream is an interceptor for what install cannot reach.
func (m *mender) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || method != rangeStream {
		return s, err
	}
	return &listing{ClientStream: s, mender: m}, nil
}

type listing struct {
	grpc.ClientStream
	*mender
	op clientv3.Op
}

func (l *listing) SendMsg(msg any) error {
	if r, ok := msg.(*pb.RangeRequest); ok {
		l.op = clientv3.OpGet(string(r.Key), clientv3.WithRange(string(r.RangeEnd)))
	}
	return l.ClientStream.SendMsg(msg)
}

func (l *listing) RecvMsg(msg any) error {
	err := l.ClientStream.RecvMsg(msg)
	if r := l.refusal(err, l.op); r != nil {
		return r
	}
	return err
}
