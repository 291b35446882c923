//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// realEtcd is the address of the etcd on which the tests run, instead of the one in memory.
// internal/etcdtest/mutex runs one; it is no dependency of this module.
var realEtcd = os.Getenv("MUTEX_TEST_ETCD")

func TestMain(m *testing.M) { goleak.VerifyTestMain(closing{m}) }

// closing closes the etcd of the examples after them.
type closing struct{ *testing.M }

func (c closing) Run() int {
	code := c.M.Run()
	if err := inMemory().Close(); err != nil {
		return 1
	}
	return code
}

// world is an etcd, real or in memory, and clients of it.
type world struct {
	t       *testing.T
	etcd    *clientv3.Client
	prefix  string
	connect func(...func(*clientv3.Config)) *clientv3.Client
}

// on runs a test on an etcd, which is in memory and in virtual time unless there is a real one.
func on(t *testing.T, test func(*testing.T, world)) {
	if realEtcd != "" {
		t.Parallel()
		onEtcd(t, test)
		return
	}
	inBubble(t, func(t *testing.T) { onEtcd(t, test) })
}

// onEtcd runs a test in real time, where it measures that.
func onEtcd(t *testing.T, test func(*testing.T, world)) {
	w := world{t: t, prefix: "/mutexes/"}
	if realEtcd != "" {
		w.prefix = fmt.Sprintf("/%s/%x/", t.Name(), time.Now().UnixNano())
		w.connect = func(edits ...func(*clientv3.Config)) *clientv3.Client {
			cfg := clientv3.Config{Endpoints: []string{realEtcd}, Logger: zap.NewNop()}
			for _, edit := range edits {
				edit(&cfg)
			}
			c, err := clientv3.New(cfg)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
	} else {
		cluster := memetcd.New(memetcd.Options{})
		cluster.Set(memetcd.Faults{Request: 10 * time.Millisecond, Answer: 10 * time.Millisecond})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		w.connect = func(edits ...func(*clientv3.Config)) *clientv3.Client {
			link, err := cluster.Connect(edits...)
			require.NoError(t, err)
			return link.Client
		}
	}
	w.etcd = w.connect()
	test(t, w)
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(*testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))) // 2000 is not plausible
		test(t)
	})
}

func newClient(t *testing.T, etcd *clientv3.Client, opts ...mutex.Option) *mutex.Client {
	t.Helper()
	c, err := mutex.New(etcd, opts...)
	require.NoError(t, err)
	return c
}

// client returns a client as another process would have it.
func (w world) client(opts ...mutex.Option) *mutex.Client { return w.over(w.connect(), opts...) }

// over returns a client of this connection.
func (w world) over(etcd *clientv3.Client, opts ...mutex.Option) *mutex.Client {
	w.t.Helper()
	return newClient(w.t, etcd, append(opts, mutex.Prefix(w.prefix))...)
}

// fields returns all keys of the locks with their values.
func (w world) fields() map[string]string {
	resp, err := w.etcd.Get(w.t.Context(), w.prefix, clientv3.WithPrefix())
	require.NoError(w.t, err)
	fields := map[string]string{}
	for _, kv := range resp.Kvs {
		fields[strings.TrimPrefix(string(kv.Key), w.prefix)] = string(kv.Value)
	}
	return fields
}

func (w world) txn(ops ...clientv3.Op) {
	w.t.Helper()
	_, err := w.etcd.Txn(w.t.Context()).Then(ops...).Commit()
	require.NoError(w.t, err)
}

func (w world) lock(c *mutex.Client, name string, opts ...mutex.Option) *mutex.Lock {
	w.t.Helper()
	l, err := c.Lock(w.t.Context(), name, opts...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = l.Unlock(context.Background()) })
	return l
}

// soon is the deadline of what depends only on etcd and the client, on a busy machine.
const soon = 30 * time.Second

// eventually waits until the condition holds.
func eventually(t *testing.T, condition func() bool, message ...any) {
	t.Helper()
	for began := time.Now(); !condition(); {
		if time.Since(began) > soon {
			require.FailNow(t, "the condition did not hold in time", message...)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func done(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * soon): // also of virtual time
		require.FailNow(t, "the context did not end")
	}
	return context.Cause(ctx)
}
