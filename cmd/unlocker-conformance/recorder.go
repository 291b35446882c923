package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// kitHeader marks the requests of the kit itself, which are not recorded.
const kitHeader = "unlocker-conformance"

// recorder sees each request that reaches the gRPC server of etcd, also those of the JSON
// gateway, and can act immediately before and after the next one of a kind.
type recorder struct {
	mu    sync.Mutex
	seen  []request
	next  hook
	meets func(request any) bool
}

// hook gets a request of the client in place of etcd, to which forward passes it on.
type hook func(ctx context.Context, m any, forward func() (any, error)) (any, error)

type request struct {
	at    time.Time
	text  string // one line of evidence
	write bool
}

func ours(ctx context.Context) bool {
	md, _ := metadata.FromIncomingContext(ctx)
	return len(md.Get(kitHeader)) > 0
}

func (r *recorder) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(r.unary), grpc.ChainStreamInterceptor(r.stream)}
}

func (r *recorder) unary(ctx context.Context, m any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if ours(ctx) {
		return handler(ctx, m)
	}
	forward := func() (any, error) { return handler(ctx, m) }
	if h := r.note(info.FullMethod, m); h != nil {
		return h(ctx, m, forward)
	}
	return forward()
}

func (r *recorder) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !ours(s.Context()) {
		s = recordedStream{s, info.FullMethod, r}
	}
	return handler(srv, s)
}

type recordedStream struct {
	grpc.ServerStream
	method string
	r      *recorder
}

// RecvMsg notes a message. Requests for progress and cancellations are noted, too.
func (s recordedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err != nil {
		return err
	}
	if h := s.r.note(s.method, m); h != nil {
		_, err = h(s.Context(), m, func() (any, error) { return m, nil })
	}
	return err
}

// note records a request. It returns the hook that is armed, and disarms it, if the request meets it.
func (r *recorder) note(method string, m any) (h hook) {
	text := strings.ReplaceAll(fmt.Sprintf("%s %v", path.Base(method), m), prefix, "")
	r.mu.Lock()
	defer r.mu.Unlock()
	q := request{time.Now(), text, writes(m)}
	r.seen = append(r.seen, q)
	if r.next != nil && r.meets(m) {
		h, r.next = r.next, nil
	}
	return h
}

// arm sets the hook of the next request of a kind.
func (r *recorder) arm(meets func(any) bool, h hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meets, r.next = meets, h
}

func nothing() error { return nil }

// surround sets what is done before and after the next request of a kind. met waits for that, and returns its
// errors, or that there was no such request.
func (r *recorder) surround(meets func(any) bool, before, after func() error) (met func() error) {
	begun, done := make(chan struct{}), make(chan error, 1)
	r.arm(meets, func(_ context.Context, _ any, forward func() (any, error)) (any, error) {
		close(begun)
		err := before()
		answer, refused := forward()
		done <- errors.Join(err, after())
		return answer, refused
	})
	return func() error {
		select {
		case <-begun:
			return <-done
		default:
			return errors.New("it sent no such request")
		}
	}
}

// requests returns what was recorded from a time on.
func (r *recorder) requests(from time.Time) []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.seen, from, func(q request, at time.Time) int { return q.at.Compare(at) })
	return slices.Clone(r.seen[i:])
}

// writes waits until a command has sent a request that can write.
func (t *trial) writes(p *pending) {
	sent := func() bool { return slices.ContainsFunc(t.requests(p.sent), func(q request) bool { return q.write }) }
	t.require(t.within(startup, sent), "%s sent no request that writes", p.c.Op)
}

// watches reports whether a request begins a watch.
func watches(m any) bool {
	w, _ := m.(*pb.WatchRequest)
	return w.GetCreateRequest() != nil
}

// writes reports whether a request can write, if its comparisons allow it.
func writes(m any) bool {
	switch m := m.(type) {
	case *pb.PutRequest, *pb.DeleteRangeRequest:
		return true
	case *pb.TxnRequest:
		return slices.ContainsFunc(slices.Concat(m.GetSuccess(), m.GetFailure()), func(op *pb.RequestOp) bool {
			return op.GetRequestPut() != nil || op.GetRequestDeleteRange() != nil || writes(op.GetRequestTxn())
		})
	}
	return false
}
