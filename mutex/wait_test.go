//go:build go1.25

package mutex_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watched records the revisions from which a client watches.
type watched struct {
	clientv3.Watcher
	from chan int64
}

func (w watched) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.from <- clientv3.OpGet(key, opts...).Rev()
	return w.Watcher.Watch(ctx, key, opts...)
}

// TestWaitersWatchNoOldRevision: etcd serves a watch of a revision that it already has up to
// 100 ms later, and so would each hand-off be.
func TestWaitersWatchNoOldRevision(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		holder, client := w.client(), w.connect()
		from := make(chan int64, 1)
		client.Watcher = watched{client.Watcher, from}
		waiter := w.over(client)

		l := w.lock(holder, "a")
		waited := make(chan error, 1)
		go func() { waited <- waiter.WithLock(t.Context(), "a", func(context.Context) error { return nil }) }()
		require.Zero(t, <-from)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, <-waited)
	})
}
