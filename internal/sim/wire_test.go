package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"

	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// wire is the network between one client and a virtual etcd. Its methods may be called concurrently.
type wire struct {
	etcd  *virtual
	admin bool

	mu      sync.Mutex
	faults  memetcd.Faults
	changed chan struct{} // closed, and replaced, with the faults
	open    []*connection
	request func(req any)
}

// connect returns the network of a new client. An admin may connect before the others.
func (e *virtual) connect(admin bool) *wire {
	l := &wire{etcd: e, admin: admin, changed: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wires = append(e.wires, l)
	return l
}

// client returns a client that reaches etcd by this network, with timeouts as those of internal/etcd. Each
// edit may change its configuration.
func (l *wire) client(edits ...func(*clientv3.Config)) (*clientv3.Client, error) {
	connect := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	connect.Backoff.MaxDelay = 3 * time.Second
	c := clientv3.Config{
		Endpoints: []string{"passthrough:///" + member}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 4 * time.Second, DialOptions: []grpc.DialOption{grpc.WithConnectParams(connect)},
	}
	for _, edit := range edits {
		edit(&c)
	}
	c.DialOptions = append(c.DialOptions, l.dialOptions()...)
	return clientv3.New(c)
}

// dialOptions are those with which a client has this network. They belong after all others.
func (l *wire) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(l.dial), grpc.WithChainUnaryInterceptor(l.intercept), grpc.WithStatsHandler(l),
	}
}

// onRequest sets a function that is called with each unary request in the instant in which it goes on
// a connection. It must not call the etcd.
func (l *wire) onRequest(f func(req any)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.request = f
}

// Set replaces the faults. Refuse breaks the connections and refuses others. What is held up arrives when
// that is lifted, also if the client has given it up or closed its connection. A Lag and NoLeader have no effect.
func (l *wire) Set(f memetcd.Faults) {
	l.mu.Lock()
	l.faults = f
	l.wake()
	l.mu.Unlock()
	if f.Refuse {
		l.reset()
	}
}

func (l *wire) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// reset breaks all connections: what is on its way is lost.
func (l *wire) reset() {
	l.mu.Lock()
	broken := l.open
	l.open = nil
	l.mu.Unlock()
	for _, c := range broken {
		c.reset()
	}
}

type requestKey struct{}

func (l *wire) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx = metadata.AppendToOutgoingContext(context.WithValue(ctx, requestKey{}, req), numberKey, l.etcd.number(l, req))
	return invoke(ctx, method, req, reply, cc, opts...)
}

// HandleRPC implements stats.Handler.
func (l *wire) HandleRPC(ctx context.Context, s stats.RPCStats) {
	req := ctx.Value(requestKey{})
	if _, leaves := s.(*stats.OutHeader); !leaves || req == nil {
		return
	}
	l.mu.Lock()
	see := l.request
	l.mu.Unlock()
	if see != nil {
		see(req)
	}
}

// TagRPC implements stats.Handler.
func (*wire) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (*wire) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*wire) HandleConn(context.Context, stats.ConnStats) {}

var errRefused = errors.New("connect: connection refused")

// dial connects to the server. A network that carries nothing answers no dial.
func (l *wire) dial(ctx context.Context, _ string) (net.Conn, error) {
	if passes, _ := l.passes(ctx.Done(), time.Now(), func(f memetcd.Faults) (bool, time.Duration) {
		return !f.Refuse && (f.HoldRequests || f.HoldAnswers), 0
	}); !passes {
		return nil, ctx.Err()
	}
	l.mu.Lock()
	refuse := l.faults.Refuse
	l.mu.Unlock()
	l.etcd.mu.Lock()
	server, open, closed := l.etcd.serving, l.etcd.open || l.admin, l.etcd.closed
	l.etcd.mu.Unlock()
	if refuse || server == nil || !open || closed {
		return nil, errRefused
	}
	far, err := server.DialContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return l.connect(far), nil
}

// connection carries bytes between the two, at the pace of the network.
type connection struct {
	client, server net.Conn
	broken         <-chan struct{}
	end            func() // closes broken
}

func (l *wire) connect(far net.Conn) net.Conn {
	near, mine := pair()
	ctx, end := context.WithCancel(context.Background())
	c := &connection{client: mine, server: far, broken: ctx.Done(), end: end}
	l.mu.Lock()
	l.open = append(l.open, c)
	l.mu.Unlock()
	requests := func(f memetcd.Faults) (bool, time.Duration) { return f.HoldRequests, f.Request }
	answers := func(f memetcd.Faults) (bool, time.Duration) { return f.HoldAnswers, f.Answer }
	var both sync.WaitGroup
	both.Go(func() { l.carry(c, c.client, c.server, requests) })
	both.Go(func() { l.carry(c, c.server, c.client, answers) })
	go func() {
		both.Wait()
		c.reset()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = slices.DeleteFunc(l.open, func(o *connection) bool { return o == c })
	}()
	return near
}

// pair returns the two ends of a connection.
func pair() (a, b net.Conn) {
	l := bufconn.Listen(1 << 16)
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept() // it is not closed
		accepted <- c
	}()
	a, _ = l.Dial()
	return a, <-accepted
}

func (c *connection) reset() {
	c.end()
	_ = c.client.Close()
	_ = c.server.Close()
}

// packet is what was read at once.
type packet struct {
	bytes []byte
	sent  time.Time
}

// pace is between the packets of a network that resumes.
const pace = time.Millisecond

// carry carries one direction, and closes it after all that was sent has arrived.
func (l *wire) carry(c *connection, from, to net.Conn, of func(memetcd.Faults) (hold bool, takes time.Duration)) {
	packets := make(chan packet, 1<<10)
	go func() {
		defer close(packets)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			select {
			case packets <- packet{b[:n], time.Now()}:
			case <-c.broken:
				return
			}
		}
	}()
	defer to.Close()
	for p := range packets {
		passes, held := l.passes(c.broken, p.sent, of)
		if !passes {
			return
		}
		if _, err := to.Write(p.bytes); err != nil {
			return
		}
		if held {
			<-time.After(pace) // so that a request is served before its end arrives, too
		}
	}
	l.passes(c.broken, time.Now(), of)
}

// passes waits until what was sent at a time arrives. It reports whether that is before an end, and whether it was held up.
func (l *wire) passes(end <-chan struct{}, sent time.Time, of func(memetcd.Faults) (hold bool, takes time.Duration)) (arrives, held bool) {
	for {
		l.mu.Lock()
		hold, takes := of(l.faults)
		changed := l.changed
		l.mu.Unlock()
		left := takes - time.Since(sent)
		if !hold && left <= 0 {
			return true, left < 0 // what waited after the first packet, too
		}
		var arrived <-chan time.Time
		if !hold {
			arrived = time.After(left)
		}
		select {
		case <-changed:
		case <-arrived:
		case <-end:
			return false, false
		}
	}
}
