package elect

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key      = "/unlocker/leader/mutexes"
	quick    = 2 * time.Second
	slow     = 10 * time.Second // a third of it is more than any test waits for a hint
	patience = 2 * time.Second
	long     = 30 * time.Second
	poll     = 2 * time.Millisecond
)

// world is a real etcd and a client that goes to it directly.
type world struct {
	t       *testing.T
	cluster *localetcd.Cluster
	direct  *clientv3.Client
}

func newWorld(t *testing.T, o localetcd.Options) *world {
	t.Helper()
	cluster := localetcd.ForTest(t, o)
	return &world{t: t, cluster: cluster, direct: newClient(t, cluster.Addr(0))}
}

func newClient(t *testing.T, addr string, edits ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{addr}, DialTimeout: patience, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	c, err := clientv3.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// gated returns an edit of a client's configuration that puts gate before each
// call and each new stream.
func gated(gate func(ctx context.Context, method string) error) func(*clientv3.Config) {
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		if err := gate(ctx, path.Base(method)); err != nil {
			return err
		}
		return next(ctx, method, req, reply, cc, o...)
	}
	stream := func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := gate(ctx, path.Base(method)); err != nil {
			return nil, err
		}
		return next(ctx, d, cc, method, o...)
	}
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
	}
}

func (w *world) proxy() *localetcd.Proxy {
	w.t.Helper()
	p, err := localetcd.NewProxy(w.cluster.Addr(0))
	require.NoError(w.t, err)
	w.t.Cleanup(p.Close)
	return p
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), long)
	w.t.Cleanup(cancel)
	return ctx
}

// replica is an elector that runs until it is stopped, or the test ends.
type replica struct {
	*Elector
	log    *records
	cancel context.CancelFunc
	ended  chan error
}

func options(c *clientv3.Client, identity string, ttl time.Duration) Options {
	return Options{
		Client: c, Key: key, TTL: ttl, Identity: identity, RequestTimeout: patience,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) run(c *clientv3.Client, identity string, ttl time.Duration, edits ...func(*Options)) *replica {
	w.t.Helper()
	r := &replica{log: &records{}, ended: make(chan error, 1)}
	o := options(c, identity, ttl)
	o.Logger = slog.New(r.log)
	for _, edit := range edits {
		edit(&o)
	}
	var err error
	r.Elector, err = New(o)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx) }()
	w.t.Cleanup(func() { r.stop(w.t) })
	return r
}

// stop ends a replica with grace, and asserts that this takes no longer than
// promised. It may be called more than once.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	require.False(t, r.Leader(), "a leader no more as soon as the context is done")
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		r.ended <- nil
	case <-time.After(3 * time.Second):
		require.FailNow(t, "still running three seconds after its end")
	}
}

// eventually waits for a condition and returns how long it took.
func (w *world) eventually(what string, condition func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for !condition() {
		require.Less(w.t, time.Since(began), long, what)
		<-tick.C
	}
	return time.Since(began)
}

// throughout asserts a condition for some time.
func (w *world) throughout(d time.Duration, what string, condition func() bool) {
	w.t.Helper()
	began := time.Now()
	w.eventually(what, func() bool {
		require.True(w.t, condition(), what)
		return time.Since(began) > d
	})
}

func (w *world) leads(r *replica) time.Duration {
	w.t.Helper()
	return w.eventually(r.Identity+" leads", r.Leader)
}

// waits waits for a key of the replica in etcd.
func (w *world) waits(r *replica) {
	w.t.Helper()
	w.eventually(r.Identity+" stands in line", func() bool { return w.keyOf(r) != "" })
}

// keyOf returns the replica's key, "" for none, and fails on two.
func (w *world) keyOf(r *replica) string {
	w.t.Helper()
	found := ""
	resp, err := w.direct.Get(w.ctx(), r.prefix, clientv3.WithPrefix())
	require.NoError(w.t, err)
	for _, kv := range resp.Kvs {
		if string(kv.Value) == r.Identity {
			require.Empty(w.t, found, "one key each")
			found = string(kv.Key)
		}
	}
	return found
}

// records is a slog.Handler that keeps "level: message".
type records struct {
	mu    sync.Mutex
	lines []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) WithGroup(string) slog.Handler            { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%s: %s", rec.Level, rec.Message))
	return nil
}

func (r *records) count(line string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		if l == line {
			n++
		}
	}
	return n
}

const (
	warned   = "WARN: no part in the election, trying again"
	repeated = "DEBUG: no part in the election, trying again"
)
