//go:build go1.25

package mutex_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// requireExpired requires that a lease is no more.
func requireExpired(t *testing.T, w world, lease int64) {
	t.Helper()
	resp, err := w.etcd.TimeToLive(t.Context(), clientv3.LeaseID(lease))
	require.NoError(t, err)
	require.EqualValues(t, -1, resp.TTL)
}

// Waits share one lease, also those that begin while it is granted. It ends with the last.
func TestWaitsShareALease(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		link.Set(memetcd.Faults{Request: 10 * time.Millisecond})
		grants := count[*etcdserverpb.LeaseGrantRequest](link)
		for who := range 8 {
			go func() {
				l, err := c.Lock(q.ctx, "a", q.opts...)
				q.taken <- taken{who, l, err}
			}()
			<-time.After(4 * time.Millisecond)
		}
		eventually(t, func() bool { return len(tickets(t, q.w, "a")) == 8 })
		require.EqualValues(t, 1, grants.Load())
		lease := tickets(t, q.w, "a")[0].Lease
		for range 8 {
			q.release()
			_, _ = q.next()
		}
		q.release()
		<-time.After(15 * time.Second)
		requireExpired(t, q.w, lease)
	})
}

// A lease is kept alive as long as any of its waits lasts, and no longer.
func TestTicketsLiveAsLongAsTheWait(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		c := q.w.client()
		q.join(1, c)
		q.join(2, c)
		before := tickets(t, q.w, "a")
		<-time.After(5 * time.Minute)
		require.Equal(t, before, tickets(t, q.w, "a"))
		q.stop()
		for range 2 {
			require.ErrorIs(t, (<-q.taken).err, mutex.ErrHeld)
		}
		synctest.Wait()
		require.Empty(t, tickets(t, q.w, "a"), "who gives up deletes its ticket")
		<-time.After(10 * time.Second)
		requireExpired(t, q.w, before[0].Lease)
		q.release()
	})
}

// A wait does not join a lease that is not kept alive any more.
func TestWaitAfterAWait(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		c := q.w.client()
		q.apart(func() { q.join(1, c) })
		q.stop()
		require.ErrorIs(t, (<-q.taken).err, mutex.ErrHeld)
		<-time.After(7 * time.Second) // it has three seconds left
		q.join(2, c)
		ticket := tickets(t, q.w, "a")
		<-time.After(20 * time.Second)
		require.Equal(t, ticket, tickets(t, q.w, "a"))
		q.serves(2)
	})
}

// A waiter whose lease was revoked, or restored away, queues again, and does not ask etcd for the lease all the time.
func TestWaiterWhoseLeaseWasRevoked(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.join(1, c)
		link.Set(memetcd.Faults{Request: time.Millisecond})
		sent := count[*etcdserverpb.LeaseKeepAliveRequest](link)
		lease := tickets(t, q.w, "a")[0].Lease
		_, err := q.w.etcd.Revoke(t.Context(), clientv3.LeaseID(lease))
		require.NoError(t, err)
		<-time.After(11 * time.Second)
		require.Len(t, tickets(t, q.w, "a"), 1)
		require.NotEqual(t, lease, tickets(t, q.w, "a")[0].Lease)
		require.Less(t, sent.Load(), int64(20))
		q.serves(1)
	})
}

// A waiter whose ticket was deleted puts another, with the same lease, which ends with the wait.
func TestWaiterWhoseTicketWasDeleted(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, _ func() (*mutex.Client, *memetcd.Link)) {
		q.join(1, q.w.client())
		ticket := tickets(t, q.w, "a")[0]
		_, err := q.w.etcd.Delete(t.Context(), string(ticket.Key))
		require.NoError(t, err)
		<-time.After(2 * time.Minute)
		require.Len(t, tickets(t, q.w, "a"), 1)
		require.Equal(t, ticket.Lease, tickets(t, q.w, "a")[0].Lease)
		q.stop()
		require.ErrorIs(t, (<-q.taken).err, mutex.ErrHeld)
		<-time.After(15 * time.Second)
		requireExpired(t, q.w, ticket.Lease)
		q.release()
	})
}

// A waiter whose lease cannot be kept alive queues again, and again.
func TestWaiterWithoutKeepAlive(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		require.NoError(t, link.Client.Lease.Close())
		q.join(1, c)
		<-time.After(time.Minute)
		q.release()
		_, after := q.next()
		require.Less(t, after, 100*time.Millisecond)
		q.release()
	})
}

// TestDeadWaitersLeave: the tickets of a process that was killed vanish with its lease.
func TestDeadWaitersLeave(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.apart(func() {
			for who := range 3 {
				q.join(who, c)
			}
		})
		q.join(3, q.w.client())
		require.NoError(t, link.Client.Close())
		<-time.After(11 * time.Second)
		require.Len(t, tickets(t, q.w, "a"), 1)
		q.stop()
		for range 3 {
			require.Error(t, (<-q.taken).err)
		}
		q.serves(3)
	})
}

// TestStoppedWaiterQueuesAgain: a process that is suspended for longer than its lease lasts loses its place, and
// nothing else.
func TestStoppedWaiterQueuesAgain(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.join(1, c)
		q.join(2, q.w.client())
		link.Set(memetcd.Unreachable())
		<-time.After(time.Minute)
		require.Len(t, tickets(t, q.w, "a"), 1)
		link.Set(memetcd.Faults{})
		<-time.After(10 * time.Second)
		require.Len(t, tickets(t, q.w, "a"), 2)
		q.serves(2, 1)
	})
}
