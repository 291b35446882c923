package native_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/native"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) { etcdtest.Main(m, shared.Close) }

// world is an etcd, and an observer of a prefix of it.
type world struct {
	*etcdtest.Etcd
	*native.Observer
	t   *testing.T
	log etcdtest.Log
}

func newWorld(t *testing.T, e *etcdtest.Etcd, edits ...func(*native.Options)) *world {
	t.Helper()
	w := &world{Etcd: e, t: t}
	o := native.Options{
		Client: e.Client, Prefixes: []string{e.Prefix}, RequestTimeout: etcdtest.Soon, Interval: 20 * time.Millisecond,
		Limits:  native.Limits{Keys: 1000, Locks: 10, Waiters: 5},
		Explain: func(err error, _ string) error { return err }, Logger: w.log.Logger(),
	}
	for _, edit := range edits {
		edit(&o)
	}
	var err error
	w.Observer, err = native.New(o)
	require.NoError(t, err)
	return w
}

// run runs the observer until the test ends.
func (w *world) run() *world {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	return w
}

// session has a lease of a minute.
func (w *world) session() *concurrency.Session {
	w.t.Helper()
	s, err := concurrency.NewSession(w.Client, concurrency.WithTTL(60))
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// queue lets n sessions lock a mutex: the first one holds, the others wait in this order.
func (w *world) queue(name string, n int) (sessions []*concurrency.Session) {
	w.t.Helper()
	for i := range n {
		s := w.session()
		m := concurrency.NewMutex(s, name)
		if i == 0 {
			require.NoError(w.t, m.Lock(w.t.Context()))
		} else {
			w.wait(name, func(ctx context.Context) error { return m.Lock(ctx) })
		}
		sessions = append(sessions, s)
	}
	return sessions
}

// wait calls block, which puts one more key below name and then waits until the test ends.
func (w *world) wait(name string, block func(context.Context) error) {
	w.t.Helper()
	count := func() int64 {
		resp, err := w.Client.Get(w.t.Context(), name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(w.t, err)
		return resp.Count
	}
	before := count()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = block(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-ended
	})
	etcdtest.Eventually(w.t, func() bool { return count() > before })
}

// prefix returns what a view has of the one prefix as soon as it is as wanted. A view in which etcd took
// too long for a lease is not, unless listing fails.
func (w *world) prefix(wanted func(api.NativePrefix) bool) (p api.NativePrefix) {
	w.t.Helper()
	etcdtest.Eventually(w.t, func() bool {
		list, err := w.View(w.t.Context())
		require.NoError(w.t, err)
		require.Len(w.t, list.Prefixes, 1)
		p = list.Prefixes[0]
		return wanted(p) && (p.Error != "" || !slices.ContainsFunc(p.Holders, unread))
	})
	return p
}

func unread(h api.NativeHolder) bool {
	return slices.ContainsFunc(append([]api.NativeKey{h.NativeKey}, h.Waiters...), func(k api.NativeKey) bool { return k.LeaseState == api.LeaseUnknown })
}

func (w *world) put(key, value string, options ...clientv3.OpOption) {
	w.t.Helper()
	_, err := w.Client.Put(w.t.Context(), key, value, options...)
	require.NoError(w.t, err)
}

// shows describes a lock: its name and then, for each key, the lease and its state.
func shows(h api.NativeHolder) (text string) {
	text = h.Name
	for _, k := range append([]api.NativeKey{h.NativeKey}, h.Waiters...) {
		text += fmt.Sprintf(" %s:%s", k.Lease, k.LeaseState)
	}
	return text
}

func leaseOf(s *concurrency.Session) string { return fmt.Sprintf("%x", s.Lease()) }

var errRefused = errors.New("refused")
