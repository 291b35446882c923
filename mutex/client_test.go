//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// A client of etcd may be without a connection, as that of an embedded server is, and have only what New uses.
func TestClientsWithoutAConnection(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		_, link := connect()
		bare := clientv3.NewCtxClient(t.Context())
		bare.Watcher = clientv3.NewWatchFromWatchClient(etcdserverpb.NewWatchClient(link.Client.ActiveConnection()), link.Client)
		bare.KV, _ = failing(link.Client.KV, context.DeadlineExceeded)
		_, err := newClient(t, bare).TryLock(t.Context(), "a")
		require.ErrorContains(t, err, "was unreachable: no answer")
		for i, etcd := range []*clientv3.Client{bare, {Watcher: link.Client.Watcher}} {
			etcd.KV, etcd.Lease = link.Client.KV, link.Client.Lease
			c := newClient(t, etcd, mutex.KeepAlive(time.Hour))
			name := fmt.Sprint(i)
			l, err := c.Lock(t.Context(), name)
			require.NoError(t, err)
			waited := make(chan error, 1)
			go func() { waited <- c.WithLock(t.Context(), name, func(context.Context) error { return nil }) }()
			<-time.After(10 * time.Minute)
			require.NoError(t, l.Held())
			require.NoError(t, l.Unlock(t.Context()))
			require.NoError(t, <-waited)
		}
		<-time.After(10 * time.Second) // the lease of the waits ends
	})
}

// Only an etcd that does not answer is waited for: not one in which an operator moves the deadline at each renewal.
func TestNoWarningOfAnEtcdThatAnswers(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		log, said := logged()
		c, link := connect(log, mutex.Patience(time.Minute))
		_, admin := connect()
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		link.Set(memetcd.Faults{Request: 10 * time.Millisecond})
		renewed := make(chan error, 1)
		go func() { renewed <- l.Alive(t.Context()) }()
		for began := time.Now(); time.Since(began) < 30*time.Second; <-time.After(time.Millisecond) {
			_, err := admin.Put(t.Context(), "/mutexes/a/auto_unlock_at", fmt.Sprint(time.Now().Unix()+60))
			require.NoError(t, err)
		}
		require.NoError(t, <-renewed)
		require.Empty(t, said())
		require.NoError(t, l.Unlock(t.Context()))
	})
}
