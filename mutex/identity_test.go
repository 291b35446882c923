//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// TestIdentity lets a process take its own lock again after a crash, and nobody else.
func TestIdentity(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		crashed := w.lock(w.client(mutex.Identity("shop-0"), mutex.Metadata("old", "1")), "a")
		w.txn(clientv3.OpPut(w.prefix+"a/b/uuid", "nested"))
		for _, opts := range [][]mutex.Option{nil, {mutex.Identity("shop-1")}} {
			_, err := w.client(opts...).TryLock(t.Context(), "a")
			require.ErrorIs(t, err, mutex.ErrHeld)
		}
		again, err := w.client(mutex.Identity("shop-0")).TryLock(t.Context(), "a")
		require.NoError(t, err)
		require.Greater(t, again.Token(), crashed.Token())
		require.NotContains(t, w.fields(), "a/old")
		require.Equal(t, "nested", w.fields()["a/b/uuid"])
		require.ErrorIs(t, done(t, crashed.Context(t.Context())), mutex.ErrForced)
		require.ErrorIs(t, crashed.Unlock(t.Context()), mutex.ErrForced)
		require.NoError(t, again.Held())
		require.NoError(t, again.Unlock(t.Context()))
	})
}

// A lock of the same identity is taken again whatever lies under its name: all its known fields go.
func TestIdentityAmongManyKeys(t *testing.T) {
	for name, more := range map[string]string{"nested locks": "a/%03d/uuid", "fields": "a/%03d"} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				crashed := w.lock(w.client(mutex.Identity("shop-0")), "a")
				require.NoError(t, crashed.Alive(t.Context(), mutex.Status("half")))
				for i := range 200 {
					w.txn(clientv3.OpPut(w.prefix+fmt.Sprintf(more, i), "x"))
				}
				again, err := w.client(mutex.Identity("shop-0")).TryLock(t.Context(), "a")
				require.NoError(t, err)
				require.NotContains(t, w.fields(), "a/status")
				require.NotContains(t, w.fields(), "a/alive_at")
				require.ErrorIs(t, done(t, crashed.Context(t.Context())), mutex.ErrForced)
				require.NoError(t, again.Unlock(t.Context()))
			})
		})
	}
}

// A release that etcd refuses is what keeps a process from taking its own lock again.
func TestIdentityThatCannotRelease(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		w.lock(w.client(mutex.Identity("shop-0")), "a")
		etcd := w.connect()
		txns := 0
		etcd.KV = hooked{etcd.KV, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
			if txns++; txns == 3 { // after the attempt, and who holds the lock
				return nil, rpctypes.ErrPermissionDenied
			}
			return txn.Commit()
		}}
		_, err := w.over(etcd, mutex.Identity("shop-0")).TryLock(t.Context(), "a")
		require.EqualError(t, err, `mutex: lock "a": etcdserver: permission denied`)
	})
}

// What keeps a process from taking its own lock again is said, and not that the lock is held.
func TestIdentityThatCannotRead(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		w.lock(w.client(mutex.Identity("shop-0")), "a")
		etcd := w.connect()
		etcd.KV = failingReads{etcd.KV, rpctypes.ErrPermissionDenied, new(atomic.Int64)}
		_, err := w.over(etcd, mutex.Identity("shop-0")).TryLock(t.Context(), "a")
		require.EqualError(t, err, `mutex: lock "a": read its keys: etcdserver: permission denied`)
	})
}

// A process takes its own lock again without a ticket of its own, if it is quicker than those that wait.
func TestIdentityDoesNotQueue(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, admin := connect(mutex.Identity("shop-0"))
		other, link := connect(mutex.Identity("shop-1"))
		w := world{t: t, etcd: admin.Client, prefix: "/mutexes/"}
		crashed := w.lock(c, "a")
		q := &line{w: w, taken: make(chan taken, 1), ctx: t.Context()}
		q.join(1, other)
		link.Set(memetcd.Faults{Request: 500 * time.Millisecond})
		began := time.Now()
		q.holder = w.lock(c, "a")
		require.Less(t, time.Since(began), 100*time.Millisecond)
		require.Greater(t, q.holder.Token(), crashed.Token())
		require.Len(t, tickets(t, w, "a"), 1)
		<-time.After(time.Second)
		link.Set(memetcd.Faults{})
		q.serves(1)
	})
}

// A process takes its own lock again without the right to tickets, too.
func TestIdentityWithoutTickets(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		w.lock(w.client(mutex.Identity("shop-0")), "a")
		etcd := w.connect()
		r := refusing{KV: etcd.KV, Lease: etcd.Lease, txn: rpctypes.ErrPermissionDenied}
		etcd.KV, etcd.Lease = r, r
		c := w.over(etcd, mutex.Identity("shop-0"), mutex.Observe(nil))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		l, err := c.Lock(ctx, "a")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
	})
}
