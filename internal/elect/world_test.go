package elect

import (
	"context"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	key = "/unlocker/leader/mutexes"
	// quick is the TTL of replicas that are to be replaced. A busy machine may exceed it, so that
	// they lose their leadership without any fault; slow is that of those that must not.
	quick = 2 * time.Second
	slow  = 10 * time.Second
	// long is the deadline for what depends only on etcd and the elector, on a busy machine.
	long = time.Minute
	poll = 5 * time.Millisecond
)

// world is an etcd with a client.
type world struct {
	t       *testing.T
	etcd    *etcdtest.Etcd
	cluster *localetcd.Cluster
	direct  *clientv3.Client
}

func newWorld(t *testing.T, o localetcd.Options) *world {
	t.Helper()
	w := &world{t: t, etcd: etcdtest.Start(t, o)}
	w.cluster = w.etcd.Cluster
	w.direct = w.client()
	return w
}

func (w *world) client(edits ...func(*clientv3.Config)) *clientv3.Client {
	w.t.Helper()
	c, err := w.cluster.Client(edits...)
	require.NoError(w.t, err)
	return c
}

// proxied returns a client that is connected through the proxy only.
func (w *world) proxied() (*clientv3.Client, *localetcd.Proxy) {
	w.t.Helper()
	p := w.etcd.Proxy(0)
	return w.client(func(c *clientv3.Config) { c.Endpoints = []string{p.Addr()} }), p
}

// hanging returns a client whose calls of a method do not return while hung is set.
func (w *world) hanging(method string) (*clientv3.Client, *atomic.Bool) {
	hung := &atomic.Bool{}
	gate := func(ctx context.Context, called string) {
		if path.Base(called) == method && hung.Load() {
			<-ctx.Done()
		}
	}
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		gate(ctx, method)
		return next(ctx, method, req, reply, cc, o...)
	}
	stream := func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		gate(ctx, method)
		return next(ctx, d, cc, method, o...)
	}
	return w.client(func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
	}), hung
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), long)
	w.t.Cleanup(cancel)
	return ctx
}

// replica is an elector that runs until it is stopped or the test ends.
type replica struct {
	*Elector
	log    *etcdtest.Log
	cancel context.CancelFunc
	ended  chan error
}

func options(c *clientv3.Client, identity string, ttl time.Duration) Options {
	return Options{Explain: func(err error) error { return err },
		Client: c, Key: key, TTL: ttl, Identity: identity, RequestTimeout: 10 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (w *world) run(c *clientv3.Client, identity string, ttl time.Duration, edits ...func(*Options)) *replica {
	w.t.Helper()
	r := &replica{log: &etcdtest.Log{}, ended: make(chan error, 1)}
	o := options(c, identity, ttl)
	o.Logger = r.log.Logger()
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

// stop stops a replica, which must not take longer than revokeTimeout, and some time on a busy
// machine. It may be called more than once.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	select {
	case err := <-r.ended:
		require.NoError(t, err)
		require.Equal(t, Status{}, r.Status())
		r.ended <- nil
	case <-time.After(revokeTimeout + 8*time.Second):
		require.FailNow(t, "Run does not end")
	}
}

func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	require.Eventually(w.t, condition, long, poll, what)
}

// throughout requires that a condition holds for the time d.
func (w *world) throughout(d time.Duration, what string, condition func() bool) {
	w.t.Helper()
	require.Never(w.t, func() bool { return !condition() }, d, poll, what)
}

func (w *world) leads(r *replica) {
	w.t.Helper()
	// Its key may be gone since, and it does not know that yet: then it leads again.
	w.eventually(r.Identity+" leads and has a key", func() bool { return r.Leader() && w.keyOf(r) != nil })
}

// waits waits until the replica has a key in etcd, which it returns.
func (w *world) waits(r *replica) *mvccpb.KeyValue {
	w.t.Helper()
	found := make(chan *mvccpb.KeyValue, 1)
	w.eventually(r.Identity+" has a key", func() bool {
		kv := w.keyOf(r)
		if kv != nil {
			found <- kv // of one look, as the first that holds is the last
		}
		return kv != nil
	})
	return <-found
}

// keyOf returns the key of the replica, or nil.
func (w *world) keyOf(r *replica) *mvccpb.KeyValue {
	w.t.Helper()
	resp, err := w.direct.Get(w.ctx(), key+"/", clientv3.WithPrefix())
	require.NoError(w.t, err)
	i := slices.IndexFunc(resp.Kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Value) == r.Identity })
	if i < 0 {
		return nil
	}
	return resp.Kvs[i]
}

// count returns how often the log has the words.
func count(log *etcdtest.Log, words string) int { return strings.Count(log.String(), words) }

const (
	failed = `"msg":"` + api.LogElectionFailed + `"`
	warned = `"level":"WARN",` + failed
	lost   = `"msg":"` + api.LogNotLeading + `"`
)
