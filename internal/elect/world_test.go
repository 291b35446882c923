package elect

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	key = "/unlocker/leader/mutexes"
	// ttl is that of replicas in a bubble, and slow that of those on real etcd, which a busy machine
	// does not exceed.
	ttl  = 4 * time.Second
	slow = 10 * time.Second
	// long is the deadline for what depends only on etcd and the elector, on a busy machine.
	long = time.Minute
	poll = 5 * time.Millisecond
)

// world is an etcd with a client that no fault affects.
type world struct {
	t       *testing.T
	etcd    *etcdtest.Etcd
	cluster *localetcd.Cluster // nil in a bubble
	memory  *memetcd.Cluster   // nil outside of one
	direct  *clientv3.Client
}

// newWorld is on real etcd.
func newWorld(t *testing.T, o localetcd.Options) *world {
	t.Helper()
	w := &world{t: t, etcd: etcdtest.Start(t, o)}
	w.cluster = w.etcd.Cluster
	w.direct = w.client()
	return w
}

// bubble runs a test on an etcd in memory, under virtual time.
func bubble(t *testing.T, test func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, memory: memetcd.New(memetcd.Options{})}
		t.Cleanup(func() { require.NoError(t, w.memory.Close()) })
		w.direct = w.link().Client
		test(t, w)
	})
}

func (w *world) client(edits ...func(*clientv3.Config)) *clientv3.Client {
	w.t.Helper()
	if w.memory != nil {
		return w.link(edits...).Client
	}
	c, err := w.cluster.Client(edits...)
	require.NoError(w.t, err)
	return c
}

// link returns a client whose faults a test sets.
func (w *world) link(edits ...func(*clientv3.Config)) *memetcd.Link {
	w.t.Helper()
	l, err := w.memory.Connect(edits...)
	require.NoError(w.t, err)
	return l
}

// hanging returns a client whose requests of a kind do not arrive while hung is set.
func (w *world) hanging(kind memetcd.Message) (*clientv3.Client, *atomic.Bool) {
	w.t.Helper()
	hung, l := &atomic.Bool{}, w.link()
	l.OnRequest(func(req memetcd.Message) memetcd.Faults {
		return memetcd.Faults{HoldRequests: hung.Load() && reflect.TypeOf(req) == reflect.TypeOf(kind)}
	})
	return l.Client, hung
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

// stop stops a replica, and returns how long that took. It may be called more than once.
func (r *replica) stop(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	r.cancel()
	require.NoError(t, <-r.ended)
	require.Equal(t, Status{}, r.Status())
	r.ended <- nil
	return time.Since(began)
}

// eventually waits for a condition, and returns how long that took.
func (w *world) eventually(what string, condition func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !condition() {
		require.Less(w.t, time.Since(began), long, what)
		<-time.After(poll)
	}
	return time.Since(began)
}

// throughout requires that a condition holds for the virtual time d.
func (w *world) throughout(d time.Duration, what string, condition func() bool) {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < d; <-time.After(poll) {
		require.True(w.t, condition(), what)
	}
}

func (w *world) leads(r *replica) time.Duration {
	w.t.Helper()
	// Its key may be gone since, and it does not know that yet: then it leads again.
	return w.eventually(r.Identity+" leads and has a key", func() bool { return r.Leader() && w.keyOf(r) != nil })
}

// waits waits until the replica has a key in etcd, which it returns.
func (w *world) waits(r *replica) *mvccpb.KeyValue {
	w.t.Helper()
	var kv *mvccpb.KeyValue
	w.eventually(r.Identity+" has a key", func() bool {
		kv = w.keyOf(r)
		return kv != nil
	})
	return kv
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
