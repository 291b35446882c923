package memetcd

import (
	"context"
	"io"
	"reflect"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var (
	errRefused = status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused"`)
	errBroken  = status.Error(codes.Unavailable, "error reading from server: EOF")
	errClosing = status.Error(codes.Canceled, "grpc: the client connection is closing")
)

const (
	// requestTimeout is how long etcd waits for a quorum.
	requestTimeout = 7 * time.Second
	// leaderPatience is after how long without a leader etcd cancels streams that
	// require one: three election timeouts.
	leaderPatience = 3 * time.Second
)

// stream is one RPC; a unary one is a stream with one request and one answer. It has no
// goroutine: whoever waits for an answer calls step, which does all that is due by then.
type stream struct {
	grpc.ClientStream // nil: whatever the generated code does not call
	ctx               context.Context
	link              *Link
	handler           handler
	connection, token int
	// needsLeader: the client asked for WithRequireLeader. Then orphaned is true where
	// there was no leader when the stream was opened.
	needsLeader, orphaned bool

	inbox, outbox []message
	// own are the faults of the request that is answered.
	own              Faults
	ended, abandoned bool
	over             error // it ended with
}

// message is a request or an answer in flight, or the error that ends the stream.
type message struct {
	msg     Message
	err     error
	arrives time.Time
	// rev is what the member must have before it can answer.
	rev    int64
	faults Faults
}

// handler is the part of etcd that a stream leads to. Its methods are called with the
// cluster's mutex held.
type handler interface {
	receive(s *stream, req Message)
	// pump sends what is due without a request, and returns when to call it again.
	pump(s *stream) (again time.Time)
}

func (l *Link) open(ctx context.Context, h handler) *stream {
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	md, _ := metadata.FromOutgoingContext(ctx)
	require := md.Get(rpctypes.MetadataRequireLeaderKey)
	s := &stream{ctx: ctx, link: l, handler: h, connection: l.connection, token: l.token}
	s.needsLeader = len(require) > 0 && require[0] == rpctypes.MetadataHasLeader
	s.orphaned = s.needsLeader && l.effective().NoLeader
	return s
}

// Context is the context of the RPC.
func (s *stream) Context() context.Context { return s.ctx }

// CloseSend says that there are no more requests.
func (s *stream) CloseSend() error {
	s.link.cluster.do(func() { s.ended = true })
	return nil
}

// SendMsg sends a request and never blocks.
func (s *stream) SendMsg(m any) error {
	c := s.link.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	_, unary := s.handler.(*call)
	if s.connection != s.link.connection || !unary && s.ctx.Err() != nil {
		return io.EOF
	}
	in := message{msg: clone(m.(Message))}
	if s.link.request != nil {
		in.faults = s.link.request(in.msg)
	}
	in.arrives = time.Now().Add(s.link.effective().with(in.faults).Request)
	s.inbox = append(s.inbox, in)
	if !unary {
		c.wake()
	}
	return nil
}

// RecvMsg waits for the next answer.
func (s *stream) RecvMsg(m any) error {
	return s.link.cluster.wait(s.ctx, func(now time.Time) (bool, time.Time, error) { return s.step(now, m) })
}

// detached waits like RecvMsg, but a request in flight still arrives after the caller has given up.
func (s *stream) detached(m any) error {
	c := s.link.cluster
	c.mu.Lock()
	done, _, err := s.step(time.Now(), m)
	c.mu.Unlock()
	if done {
		return err
	}
	reply := m.(Message)
	own := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
	answered := make(chan error, 1)
	go func() {
		answered <- c.wait(context.Background(), func(now time.Time) (bool, time.Time, error) { return s.step(now, own) })
	}()
	select {
	case err := <-answered:
		merge(reply, own)
		return err
	case <-s.ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		s.abandoned = true
		if len(s.inbox) > 0 && !time.Now().Before(s.inbox[0].arrives) {
			s.inbox = nil // it was held
		}
		c.wake()
		return status.FromContextError(s.ctx.Err()).Err()
	}
}

// wait looks until that is done, whenever something has changed or it is time again.
func (c *Cluster) wait(ctx context.Context, look func(now time.Time) (done bool, again time.Time, err error)) error {
	for {
		c.mu.Lock()
		done, again, err := look(time.Now())
		changed := c.changed
		c.mu.Unlock()
		if done {
			return err
		}
		var elapsed <-chan time.Time
		if !again.IsZero() {
			elapsed = time.After(time.Until(again))
		}
		select {
		case <-changed:
		case <-elapsed:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// step carries out the requests that have arrived, and puts the next answer into m.
func (s *stream) step(now time.Time, m any) (done bool, again time.Time, err error) {
	if s.over != nil {
		return true, again, s.over
	}
	defer func() { s.over = err }()
	l := s.link
	f := l.effective()
	lost := s.needsLeader && f.NoLeader && !l.leaderless.IsZero() && now.Sub(l.leaderless) >= leaderPatience
	switch {
	case l.closed:
		return true, again, errClosing
	case f.Refuse:
		return true, again, errRefused
	case s.connection != l.connection:
		return true, again, errBroken
	case s.orphaned, lost:
		return true, again, rpctypes.ErrGRPCNoLeader
	}
	if s.needsLeader && f.NoLeader {
		again = l.leaderless.Add(leaderPatience)
	}
	again = earliest(again, s.requests(now, f))
	again = earliest(again, s.handler.pump(s))
	done, at, err := s.answer(now, f, m)
	if s.abandoned && (len(s.inbox) == 0 || !now.Before(s.inbox[0].arrives)) {
		return true, again, nil
	}
	return done, earliest(again, at), err
}

// requests carries out what has arrived, in order.
func (s *stream) requests(now time.Time, f Faults) (again time.Time) {
	for len(s.inbox) > 0 {
		in := s.inbox[0]
		f := f.with(in.faults)
		switch {
		case f.Refuse:
			s.send(nil, 0, errRefused)
		case now.Before(in.arrives):
			return in.arrives
		case f.HoldRequests:
			return time.Time{}
		case f.NoLeader && needsQuorum(in.msg):
			timeout := in.arrives.Add(requestTimeout)
			if now.Before(timeout) {
				return timeout
			}
			s.send(nil, 0, rpctypes.ErrGRPCTimeout)
		default:
			s.own = in.faults
			s.handler.receive(s, in.msg)
		}
		s.inbox = s.inbox[1:]
	}
	if s.ended {
		s.send(nil, 0, io.EOF)
		s.ended = false
	}
	return time.Time{}
}

// send sends an answer, or the end of the stream.
func (s *stream) send(msg Message, rev int64, err error) {
	f := s.link.effective().with(s.own)
	s.outbox = append(s.outbox, message{msg: msg, err: err, arrives: time.Now().Add(f.Answer), rev: rev, faults: s.own})
}

// answer puts the next answer into m once it has arrived. An error is answered again.
func (s *stream) answer(now time.Time, f Faults, m any) (done bool, again time.Time, err error) {
	if len(s.outbox) == 0 {
		return false, again, nil
	}
	out := s.outbox[0]
	switch f := f.with(out.faults); {
	case f.HoldAnswers:
		return false, again, nil
	case now.Before(out.arrives):
		return false, out.arrives, nil
	case out.rev > s.link.visible():
		return false, s.link.shows(out.rev), nil
	case out.err != nil:
		return true, again, out.err
	}
	s.outbox = s.outbox[1:]
	merge(m.(Message), out.msg)
	return true, again, nil
}

// earliest returns the earlier of two times, of which the zero one is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func needsQuorum(req Message) bool {
	switch r := req.(type) {
	case *pb.RangeRequest:
		return !r.Serializable
	case *pb.StatusRequest, *pb.WatchRequest:
		return false
	}
	return true
}

// silent is a handler that sends nothing without a request.
type silent struct{}

func (silent) pump(*stream) time.Time { return time.Time{} }

type call struct{ silent }

func (*call) receive(s *stream, req Message) {
	resp, err := s.link.serve(req)
	if err != nil {
		s.send(nil, 0, err)
		return
	}
	s.send(resp, resp.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader().GetRevision(), nil)
}

// keepAlives is the stream on which leases are renewed.
type keepAlives struct{ silent }

func (*keepAlives) receive(s *stream, req Message) {
	s.send(s.link.cluster.renewed(req.(*pb.LeaseKeepAliveRequest).ID), 0, nil)
}

// listing is a range whose answer comes in chunks, all read at once.
type listing struct{ silent }

func (*listing) receive(s *stream, req Message) {
	r := req.(*pb.RangeRequest)
	if r.SortOrder == pb.RangeRequest_DESCEND || r.SortTarget != pb.RangeRequest_KEY {
		s.send(nil, 0, status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders"))
		return
	}
	if r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision != 0 {
		s.send(nil, 0, status.Error(codes.Unimplemented, "RangeStream does not support revision filters"))
		return
	}
	resp, err := s.link.serve(r)
	if err != nil {
		s.send(nil, 0, err)
		return
	}
	last := resp.(*pb.RangeResponse)
	rev, all := last.Header.Revision, last.Kvs
	for limit := 10; len(all) > limit; {
		chunk := &pb.RangeResponse{Kvs: all[:limit]}
		all = all[limit:]
		s.send(chunk, rev, nil)
		switch n := size(chunk); {
		case n < maxRequestBytes/2:
			limit *= 2
		case n > maxRequestBytes*2:
			limit = max(limit/2, 1)
		}
	}
	last.Kvs = all
	s.send(last, rev, nil)
	s.send(nil, 0, io.EOF)
}
