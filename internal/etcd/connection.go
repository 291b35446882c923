package etcd

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// alarm is the method of the probe. Its answers are short, so that one which does not come is
// evidence against the member.
const alarm = "/etcdserverpb.Maintenance/Alarm"

// traffic knows the requests in flight, by which connections read (see Read), and closes the connection to a
// member that hangs: an alarm request got no answer for patience and the connection showed nothing since, while
// another member answered one that began at least half of patience later: if this process stalled, the answers of
// all members are equally late. All that waits on the connection, a watch too, then fails at once and goes to another
// member. gRPC connects again, but a member that hangs accepts no connection, so that it gets no requests.
//
// The keepalive of gRPC would take 14 s. Nothing is closed where no member answers.
type traffic struct {
	patience time.Duration // 0: never
	logger   *slog.Logger

	mu      sync.Mutex
	pending map[*request]struct{}
	begun   chan struct{} // closed when another request begins
	over    time.Time     // when one last ended
}

type connection struct {
	net.Conn
	*traffic
	began time.Time
	// drained is whether the last read left nothing, gap how long after the one before it was. Only Read uses them.
	drained bool
	gap     time.Duration

	mu    sync.Mutex
	heard time.Time
}

// request is a request in flight; on is where an alarm request was sent, or nil.
type request struct {
	start time.Time
	on    *connection
}

type requestKey struct{}

func newTraffic(o Options) *traffic {
	return &traffic{patience: o.HangAfter, logger: o.Logger, pending: make(map[*request]struct{}), begun: make(chan struct{})}
}

// dialOptions replace the credentials that clientv3 derives from the scheme of the endpoints by
// the same ones that also record the connection.
func (t *traffic) dialOptions(endpoint string, cfg *tls.Config) []grpc.DialOption {
	if t.patience == 0 {
		return nil
	}
	secure := strings.HasPrefix(endpoint, "https:") || strings.HasPrefix(endpoint, "unixs:")
	creds := insecure.NewCredentials()
	if secure || cfg != nil && !strings.HasPrefix(endpoint, "http:") {
		creds = credentials.NewTLS(cfg)
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(recorder{creds, t}), grpc.WithPerRPCCredentials(onSend(t.sent)),
		grpc.WithChainUnaryInterceptor(t.intercept), grpc.WithChainStreamInterceptor(t.stream),
		grpc.WithReadBufferSize(readBuffer), grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
	}
}

// recorder records in the AuthInfo on which connection it is, below TLS.
type recorder struct {
	credentials.TransportCredentials
	traffic *traffic
}

type recorded struct {
	credentials.AuthInfo
	on *connection
}

// Began implements AgedConnection.
func (r recorded) Began() time.Time { return r.on.began }

// AgedConnection is the AuthInfo of connections of which Departure asks how old they are.
type AgedConnection interface{ Began() time.Time }

func (r recorder) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	on := &connection{Conn: raw, traffic: r.traffic, began: time.Now()}
	conn, info, err := r.TransportCredentials.ClientHandshake(ctx, authority, on)
	return conn, recorded{info, on}, err
}

func (r recorder) Clone() credentials.TransportCredentials {
	return recorder{r.TransportCredentials.Clone(), r.traffic}
}

func (c *connection) silentSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard.Before(t)
}

func (t *traffic) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	r := t.begin()
	if method == alarm {
		ctx = context.WithValue(ctx, requestKey{}, r)
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	for _, c := range t.ended(r, method == alarm && err == nil) {
		t.logger.Warn(api.LogMemberHangs, "member", c.RemoteAddr().String())
		_ = c.Close() // it is broken
	}
	return err
}

func (t *traffic) begin() *request {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &request{start: time.Now()}
	t.pending[r] = struct{}{}
	close(t.begun)
	t.begun = make(chan struct{})
	return r
}

// ended removes a request, and returns the connections of those that are evidence of a member
// that hangs if it was answered.
func (t *traffic) ended(r *request, answered bool) (hung []*connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, r)
	t.over = time.Now()
	for p := range t.pending {
		if answered && p.on != nil && time.Since(p.start) >= t.patience && r.start.Sub(p.start) >= t.patience/2 && p.on.silentSince(p.start) {
			if !slices.Contains(hung, p.on) {
				hung = append(hung, p.on)
			}
			p.on = nil
		}
	}
	return hung
}

// sent learns on which connection a request is sent.
func (t *traffic) sent(ctx context.Context) error {
	r, ours := ctx.Value(requestKey{}).(*request)
	info, _ := credentials.RequestInfoFromContext(ctx)
	sent, is := info.AuthInfo.(recorded)
	if ours && is {
		t.mu.Lock()
		defer t.mu.Unlock()
		r.on = sent.on
	}
	return nil
}

// Departure permits one request to go on a connection, once. gRPC waits for a connection before it sends a
// request, and repeats what a server has not processed; etcd's client repeats it after a login.
type Departure struct {
	// Open is asked in the instant in which the request goes on a connection.
	Open func() bool
	// Read, where set, is when the read began that the request relies on. It goes on no connection that has begun since:
	// etcd may have been restored, for which all its members stop.
	Read time.Time

	asked, refused atomic.Bool
}

// Refused reports whether the request was not sent, or not a second time after nothing was executed. It is for
// after the request.
func (d *Departure) Refused() bool { return d.refused.Load() }

type departureKey struct{}

// With returns the context of the request.
func (d *Departure) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, departureKey{}, d)
}

// Departs returns an error if the request of a context must not go on a connection now. The clients of New call
// it by themselves.
func Departs(ctx context.Context) error {
	d, ok := ctx.Value(departureKey{}).(*Departure)
	if !ok {
		return nil
	}
	info, _ := credentials.RequestInfoFromContext(ctx)
	on, aged := info.AuthInfo.(AgedConnection)
	if d.asked.Swap(true) || !d.Open() || aged && !d.Read.IsZero() && !on.Began().Before(d.Read) {
		d.refused.Store(true)
		return status.Error(codes.Canceled, "not sent: it was withdrawn")
	}
	return nil
}

// onSend is called for each request that goes on a connection, as credentials of the call are.
type onSend func(context.Context) error

func (f onSend) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	return nil, f(ctx)
}

func (onSend) RequireTransportSecurity() bool { return false }
