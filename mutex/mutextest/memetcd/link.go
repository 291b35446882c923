package memetcd

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"
	_ "unsafe" // for go:linkname

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// valCtxCh is the client library's channel that is never closed, which its watches
// wait for among others. It was made outside of every bubble, so that a goroutine
// waiting for it would stop virtual time. Nil never closes either.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{} //nolint:gochecknoglobals // the client library's

func init() { valCtxCh = nil } //nolint:gochecknoinits // before any goroutine reads it

// Link is a client and its connection to etcd, with the faults of both. Its methods may
// be called concurrently.
type Link struct {
	*clientv3.Client
	cluster *Cluster

	// All below is guarded by the cluster's mutex.
	faults Faults
	// connection counts the connections: one that is not the present one is broken. began is when that began.
	connection int
	began      time.Time
	// cut: the connection broke while one direction was blocked, and there is no new one.
	cut bool
	// floor is the newest revision that the member has shown.
	floor int64
	// leaderless and silent are since when, zero for not at all.
	leaderless, silent time.Time
	allowed            []span
	// user: the client has logged in, with the tokens of that number.
	user    bool
	token   int
	request func(Message) Faults
	closed  bool
}

// Connect returns a new client, whose configuration each edit may change. With a
// user name and any password it logs in and has a token.
func (c *Cluster) Connect(edits ...func(*clientv3.Config)) (*Link, error) {
	l := &Link{cluster: c}
	cfg := clientv3.Config{Endpoints: []string{"memetcd"}, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	// The innermost: those of the configuration and the library's own stand before.
	cfg.DialOptions = append(slices.Clip(cfg.DialOptions),
		grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream))
	c.mu.Lock()
	c.links = append(c.links, l)
	l.settle()
	c.mu.Unlock()
	var err error
	if l.Client, err = clientv3.New(cfg); err != nil {
		return nil, fmt.Errorf("memetcd: client: %w", err)
	}
	return l, nil
}

// Close closes the client; its pending requests fail. It may be called more than once.
func (l *Link) Close() error {
	c := l.cluster
	c.mu.Lock()
	l.closed = true
	l.reset()
	c.links = slices.DeleteFunc(slices.Clone(c.links), func(o *Link) bool { return o == l })
	c.wake()
	c.mu.Unlock()
	_ = l.Client.Close() // "context canceled" is how it says that it was closed
	return nil
}

// Allow restricts the client to a range of keys, with end as in clientv3.WithRange, beside those
// allowed before, and from then on it is no administrator. Other requests get ErrPermissionDenied.
func (l *Link) Allow(key, end string) {
	l.cluster.do(func() { l.allowed = append(l.allowed, span{key, end}) })
}

// OnRequest sets a function that is called with each request before it leaves, those
// on streams included, and returns faults of this request alone. It must not call the
// cluster, and not keep or change the request. A Lag has no effect there.
func (l *Link) OnRequest(f func(req Message) Faults) { l.cluster.do(func() { l.request = f }) }

func (l *Link) serve(req Message) (Message, error) {
	c := l.cluster
	switch r := req.(type) {
	case *pb.AuthenticateRequest:
		l.user, l.token = true, c.tokens
		return &pb.AuthenticateResponse{Header: c.header(c.rev), Token: fmt.Sprintf("%s.%d", r.Name, c.tokens)}, nil
	case *pb.StatusRequest:
		return l.status(), nil
	}
	if err := l.authorize(l.token, spans(req)); err != nil {
		return nil, err
	}
	if _, admin := req.(*pb.CompactionRequest); admin && l.allowed != nil {
		return nil, rpctypes.ErrGRPCPermissionDenied
	}
	n := len(c.log)
	resp, err := c.apply(l.visible(), req)
	c.observe(Applied{Link: l, Request: req, Err: err}, n)
	return resp, err
}

func (l *Link) authorize(token int, wanted []span) error {
	if l.user && token != l.cluster.tokens {
		return rpctypes.ErrGRPCInvalidAuthToken
	}
	for _, w := range wanted {
		if l.allowed != nil && !slices.ContainsFunc(l.allowed, func(a span) bool { return a.covers(w) }) {
			return rpctypes.ErrGRPCPermissionDenied
		}
	}
	return nil
}

// spans returns all keys that a request is about.
func spans(req Message) []span {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return []span{spanOf(r.Key, r.RangeEnd)}
	case *pb.PutRequest:
		return []span{spanOf(r.Key, nil)}
	case *pb.DeleteRangeRequest:
		return []span{spanOf(r.Key, r.RangeEnd)}
	case *pb.TxnRequest:
		var all []span
		for _, c := range r.Compare {
			all = append(all, spanOf(c.Key, c.RangeEnd))
		}
		for _, op := range slices.Concat(r.Success, r.Failure) {
			all = append(all, spans(inner(op))...)
		}
		return all
	}
	return nil
}

func inner(op *pb.RequestOp) Message {
	switch op := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return op.RequestRange
	case *pb.RequestOp_RequestPut:
		return op.RequestPut
	case *pb.RequestOp_RequestDeleteRange:
		return op.RequestDeleteRange
	case *pb.RequestOp_RequestTxn:
		return op.RequestTxn
	}
	return nil
}

func (l *Link) status() *pb.StatusResponse {
	c, head := l.cluster, l.visible()
	resp := &pb.StatusResponse{Header: c.header(head), Version: "3.7.3", Leader: 1, RaftTerm: 2, RaftIndex: uint64(head), RaftAppliedIndex: uint64(head)}
	if l.effective().NoLeader {
		resp.Leader, resp.Errors = 0, append(resp.Errors, "etcdserver: no leader")
	}
	for _, a := range c.alarmMembers() {
		resp.Errors = append(resp.Errors, a.String())
	}
	return resp
}

// unary is the interceptor that stands for the network.
func (l *Link) unary(ctx context.Context, _ string, req, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	msg := req.(Message)
	if _, is := req.(*pb.StatusRequest); is && !l.connected() {
		return errRefused // as a request that waits for no connection
	}
	if n := size(msg); n > maxSendBytes {
		return status.Errorf(codes.ResourceExhausted, "trying to send message larger than max (%d vs. %d)", n, maxSendBytes)
	}
	s := l.open(ctx, &call{})
	if err := s.SendMsg(msg); err != nil {
		return err
	}
	return s.detached(reply)
}

// stream is the interceptor that opens streams. Like a client that waits for a
// connection, it waits until requests get through.
func (l *Link) stream(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, method string, _ grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := l.cluster.wait(ctx, l.reachable); err != nil {
		return nil, err
	}
	var h handler
	switch method { // the code that etcd's releases generate has other names for these, or none
	case "/etcdserverpb.KV/RangeStream": // since 3.7
		h = &listing{}
	case "/etcdserverpb.Lease/LeaseKeepAlive":
		h = &keepAlives{}
	case "/etcdserverpb.Watch/Watch":
		h = &watchStream{}
	default:
		return nil, status.Errorf(codes.Unimplemented, "memetcd: %s", method)
	}
	return l.open(ctx, h), nil
}

// Began returns when the connection began, or the one before broke.
func (l *Link) Began() time.Time {
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	return l.began
}

func (l *Link) connected() bool {
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	done, _, err := l.reachable(time.Time{})
	return done && err == nil
}

// reachable ends the wait for a connection.
func (l *Link) reachable(time.Time) (done bool, again time.Time, err error) {
	switch f := l.effective(); {
	case l.closed:
		return true, again, errClosing
	case f.Refuse:
		return true, again, errRefused
	default:
		return !f.HoldRequests, again, nil
	}
}

// Message is a request or an answer of etcd's API. Until etcd 3.6 those are of gogo/protobuf, which
// implement no more than this.
type Message = protoadapt.MessageV1

func clone(m Message) Message {
	return protoadapt.MessageV1Of(proto.Clone(protoadapt.MessageV2Of(m)))
}

// merge adds the answer to that which a caller waits for. The chunk of a stream of ranges is
// wrapped there, in a type that only the caller's etcd has.
func merge(reply, answer Message) {
	if wrapped := reflect.TypeOf(reply) != reflect.TypeOf(answer); wrapped {
		reflect.ValueOf(reply).Elem().FieldByName("RangeResponse").Set(reflect.ValueOf(clone(answer)))
		return
	}
	proto.Merge(protoadapt.MessageV2Of(reply), protoadapt.MessageV2Of(answer))
}

func size(m Message) int {
	if own, gogo := m.(interface{ Size() int }); gogo {
		return own.Size()
	}
	return proto.Size(protoadapt.MessageV2Of(m))
}
