//go:build go1.25

package mutex_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// TestWaiterIsPassedOver: one that lives and does not see the release costs the next a second, and
// queues again.
func TestWaiterIsPassedOver(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.join(1, c)
		for who := 2; who < 5; who++ {
			q.join(who, q.w.client())
		}
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if _, ok := req.(*etcdserverpb.LeaseKeepAliveRequest); ok {
				return memetcd.Faults{}
			}
			return memetcd.Unreachable()
		})
		link.Set(memetcd.Faults{HoldAnswers: true})
		q.release()
		who, after := q.next()
		require.Equal(t, 2, who)
		require.InDelta(t, time.Second, after, float64(200*time.Millisecond))
		require.Len(t, tickets(t, q.w, "a"), 2, "its ticket is gone")
		link.OnRequest(nil)
		link.Set(memetcd.Faults{})
		link.Break()
		eventually(t, func() bool { return len(tickets(t, q.w, "a")) == 3 }, "it queues again")
		q.serves(3, 4, 1)
	})
}

// Waiters that hang together, and tickets without a lease or a waiter, block nobody for ever.
func TestTicketsWithoutWaiters(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		q.forge(4)
		q.join(1, q.w.client())
		q.join(2, q.w.client())
		for range 2 {
			q.release()
			_, after := q.next()
			require.Less(t, after, 3*time.Minute)
		}
		q.release()
	})
}

// delayAttempt delays the next attempt of a waiter that has a ticket. The channel is closed when it is sent.
func delayAttempt(link *memetcd.Link, d time.Duration) <-chan struct{} {
	deletes := func(txn *etcdserverpb.TxnRequest) bool { return strings.Contains(txn.String(), "request_delete_range") }
	return disturbFirst(link, deletes, memetcd.Faults{Request: d})
}

// A waiter that another has passed over meanwhile is not passed over again: the lock is that of the next.
func TestWaiterIsPassedOverOnce(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		from := q.forge(4)
		c, link := connect()
		q.join(1, c)
		passing := delayAttempt(link, 500*time.Millisecond)
		q.release()
		<-passing
		_, err := q.w.etcd.Delete(t.Context(), from+"0")
		require.NoError(t, err)
		_, after := q.next()
		require.Greater(t, after, time.Second)
		require.Len(t, tickets(t, q.w, "a"), 2)
		q.release()
	})
}

// A waiter that comes too late to pass another over sees the tickets before its own go all the same.
func TestWaiterThatPassesOverTooLate(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		from := q.forge(2)
		q.release()
		c, link := connect()
		passing := delayAttempt(link, 500*time.Millisecond)
		q.join(1, c)
		<-passing
		uuid := "/mutexes/" + q.holder.Name() + "/uuid" // the second passes the first over
		q.w.txn(clientv3.OpPut(uuid, "other"), clientv3.OpDelete(from+"0"), clientv3.OpDelete(from+"1"))
		<-time.After(3 * time.Second)
		_, err := q.w.etcd.Delete(t.Context(), uuid)
		require.NoError(t, err)
		_, after := q.next()
		require.Less(t, after, 2*time.Second)
		q.release()
	})
}

// A waiter that becomes the first while the lock is free has as long to take it as the one before it had.
func TestFirstOfAFreeLock(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		from := q.forge(1)
		c, slow := connect()
		q.join(1, c)
		slow.Set(memetcd.Faults{Request: 600 * time.Millisecond})
		q.release()
		<-time.After(100 * time.Millisecond)
		q.join(2, q.w.client())
		<-time.After(400 * time.Millisecond)
		_, err := q.w.etcd.Delete(t.Context(), from+"0")
		require.NoError(t, err)
		who, _ := q.next()
		require.Equal(t, 1, who)
		q.release()
		who, _ = q.next()
		require.Equal(t, 2, who)
		q.release()
	})
}
