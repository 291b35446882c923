//go:build go1.25

package mutex_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
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

// A wait that ends says who has the lock by then.
func TestWaiterKnowsTheNewHolder(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		q.join(1, q.w.client())
		q.apart(func() { q.join(2, q.w.client()) })
		q.release()
		who, _ := q.next()
		require.Equal(t, 1, who)
		<-time.After(100 * time.Millisecond)
		q.stop()
		var held *mutex.HeldError
		require.ErrorAs(t, (<-q.taken).err, &held)
		if q.slots == 0 { // it may name the holder of another slot
			require.Equal(t, q.holder.UUID(), held.Holder.UUID)
		}
		q.release()
	})
}

// What was read of the holder stays known, however often the waiter looks only whether the lock is free.
func TestWaiterKeepsTheRecord(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		q.join(1, q.w.client())
		<-time.After(5 * time.Minute)
		q.stop()
		var held *mutex.HeldError
		require.ErrorAs(t, (<-q.taken).err, &held)
		require.NotEmpty(t, held.Holder.Hostname)
		q.release()
	})
}
