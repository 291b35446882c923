package mutex_test

import (
	"context"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) {
	if endpoint := os.Getenv("MUTEX_TEST_ENDPOINT"); endpoint != "" {
		if err := helper(endpoint); err != nil {
			log.Fatal(err)
		}
		return
	}
	etcdtest.Main(m, shared.Close, func() error { return inMemory().Close() })
}

// world is an etcd, real or in memory, and clients of it.
type world struct {
	t      *testing.T
	etcd   *clientv3.Client
	prefix string
	client func(...mutex.Option) *mutex.Client
}

// both runs a test on a real etcd and on the one of mutextest.
func both(t *testing.T, test func(*testing.T, world)) {
	t.Parallel()
	t.Run("etcd", func(t *testing.T) {
		t.Parallel()
		e := shared.Start(t)
		test(t, world{t, e.Client, e.Prefix, func(opts ...mutex.Option) *mutex.Client {
			c, err := mutex.New(e.Connect(), append(opts, mutex.Prefix(e.Prefix))...)
			require.NoError(t, err)
			return c
		}})
	})
	t.Run("mutextest", func(t *testing.T) {
		t.Parallel()
		e := mutextest.New(t)
		test(t, world{t, e.Etcd(), "/mutexes/", e.Client})
	})
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

func done(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(10 * etcdtest.Soon): // also of virtual time
		require.FailNow(t, "the context did not end")
	}
	return context.Cause(ctx)
}
