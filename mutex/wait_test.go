//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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

// A wait that ends with its deadline says what the holder does by then.
func TestDeadlineOfAWait(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		began := time.Now()
		q.join(1, c, mutex.Wait(time.Minute))
		<-time.After(30 * time.Second)
		for i := range max(q.slots, 1) { // it may name the holder of any slot
			name := "a"
			if q.slots > 0 {
				name = fmt.Sprint("a/", i)
			}
			_, err := link.Put(t.Context(), "/mutexes/"+name+"/status", "half")
			require.NoError(t, err)
		}
		var held *mutex.HeldError
		require.ErrorAs(t, (<-q.taken).err, &held)
		require.Equal(t, time.Minute, time.Since(began).Round(time.Second))
		require.Equal(t, "half", held.Holder.Status)
		q.release()
	})
}

// A client without the right to tickets tries again after a minute, and not before.
func TestTicketsAreTriedAgain(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		link.Allow("/mutexes/", "/mutexes0")
		wait := func(d time.Duration) (queued int) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := c.Lock(ctx, "a", q.opts...)
				ended <- err
			}()
			<-time.After(d / 2)
			queued = len(tickets(t, q.w, "a"))
			require.ErrorIs(t, <-ended, mutex.ErrHeld)
			return queued
		}
		require.Zero(t, wait(10*time.Second))
		link.Allow("/unlocker/", "/unlocker0")
		require.Zero(t, wait(20*time.Second))
		<-time.After(30 * time.Second)
		require.Equal(t, 1, wait(10*time.Second))
		q.release()
	})
}

// A waiter that loses the right to tickets waits without one, whether it learns of that at the release or before.
func TestWaiterLosesTheRightToTickets(t *testing.T) {
	for _, before := range []time.Duration{0, 5 * time.Minute} {
		t.Run(before.String(), func(t *testing.T) {
			chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
				c, link := connect()
				q.join(1, c)
				lease := tickets(t, q.w, "a")[0].Lease
				link.Allow("/mutexes/", "/mutexes0")
				<-time.After(before)
				if before > 0 {
					requireExpired(t, q.w, lease)
				}
				q.release()
				_, after := q.next()
				require.Less(t, after, 300*time.Millisecond)
				q.release()
			})
		})
	}
}

// A wait that ends while an attempt has no answer says who had the lock at the last one, and why it ended.
func TestWaitEndsWithoutAnAnswer(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
		"canceled": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
				c, link := connect()
				attempts := 0
				link.OnRequest(func(req memetcd.Message) memetcd.Faults {
					if txn, ok := req.(*etcdserverpb.TxnRequest); !ok || len(txn.Compare) == 0 {
						return memetcd.Faults{}
					}
					attempts++
					return memetcd.Faults{HoldAnswers: attempts > 1}
				})
				ctx, cancel := end(t.Context())
				defer cancel()
				_, err := c.Lock(ctx, "a", q.opts...)
				require.ErrorIs(t, err, mutex.ErrHeld)
				require.ErrorIs(t, err, ctx.Err())
				link.OnRequest(nil)
				q.release()
				<-time.After(time.Minute)
			})
		})
	}
}

// An error of etcd is reported as such, also if the holder was known.
func TestWaiterLosesTheRightToTheLock(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		q.join(1, c)
		link.Allow("/unlocker/", "/unlocker0")
		err := (<-q.taken).err
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NotErrorIs(t, err, mutex.ErrHeld)
		q.release()
	})
}

// An answer that only a lease explains is an error like others where there is none.
func TestNotFoundWithoutALease(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		etcd := w.connect()
		etcd.KV = refusing{KV: etcd.KV, txn: rpctypes.ErrLeaseNotFound}
		_, err := w.over(etcd).Lock(t.Context(), "a")
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
	})
}

// A waiter keeps its watch as long as that shows what happens, and replaces it where a look finds more.
func TestSilentWatch(t *testing.T) {
	for name, changed := range map[string]func(*testing.T, *line, *memetcd.Link){
		"nothing": func(*testing.T, *line, *memetcd.Link) {},
		"another holder": func(t *testing.T, q *line, _ *memetcd.Link) {
			_, err := q.w.etcd.Put(t.Context(), "/mutexes/a/uuid", "other")
			require.NoError(t, err)
		},
		"free, and taken": func(t *testing.T, q *line, link *memetcd.Link) {
			passing := delayAttempt(link, 100*time.Millisecond)
			_, err := q.w.etcd.Delete(t.Context(), "/mutexes/a/uuid")
			require.NoError(t, err)
			<-passing
			_, err = q.w.etcd.Put(t.Context(), "/mutexes/a/uuid", "other")
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
				_, admin := connect()
				_, link := connect()
				w := world{t: t, etcd: admin.Client, prefix: "/mutexes/", connect: func(...func(*clientv3.Config)) *clientv3.Client { return link.Client }}
				holder, _ := connect(mutex.KeepAlive(mutex.Forever))
				q := &line{w: w, taken: make(chan taken, 1), ctx: t.Context(), holder: w.lock(holder, "a")}
				var opened atomic.Int64
				etcd := w.connect()
				etcd.Watcher = silent{etcd.Watcher, &opened}
				q.join(1, w.over(etcd))
				changed(t, q, link)
				<-time.After(10 * time.Minute)
				if name == "nothing" {
					require.EqualValues(t, 1, opened.Load())
					q.release()
					_, _ = q.next()
				} else {
					require.EqualValues(t, 2, opened.Load())
					_, err := admin.Delete(t.Context(), "/mutexes/a/uuid")
					require.NoError(t, err)
					_, after := q.next()
					require.Less(t, after, 100*time.Millisecond)
				}
				q.release()
			})
		})
	}
}

// silent shows nothing in its first watch.
type silent struct {
	clientv3.Watcher
	opened *atomic.Int64
}

func (s silent) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if s.opened.Add(1) == 1 {
		return make(chan clientv3.WatchResponse)
	}
	return s.Watcher.Watch(ctx, key, opts...)
}

// A waiter without a ticket says who has the lock, too.
func TestUnorderedWaiterSaysWhoHoldsTheLock(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		c, link := connect()
		link.Allow("/mutexes/", "/mutexes0")
		var s seen
		go func() { _, _ = c.Lock(q.ctx, "a", append(q.opts, mutex.Observe(nil), mutex.Observe(s.add))...) }()
		<-time.After(time.Second)
		_, events := s.take("")
		var held *mutex.HeldError
		require.ErrorAs(t, events[len(events)-1].Err, &held)
		require.NotEmpty(t, held.Holder.Hostname)
		q.stop()
		q.release()
	})
}

// A watch that breaks at once is opened again after ever longer pauses, up to two seconds.
func TestBrokenWatches(t *testing.T) {
	chaos(t, func(t *testing.T, _ *memetcd.Cluster, q *line, connect func() (*mutex.Client, *memetcd.Link)) {
		_, link := connect()
		etcd := link.Client
		opened := make(chan time.Time, 1000)
		etcd.Watcher = ending{etcd.Watcher, opened}
		q.join(1, q.w.over(etcd))
		<-time.After(time.Minute)
		require.InDelta(t, 35, len(opened), 15)
		first, second := <-opened, <-opened
		require.Less(t, second.Sub(first), 61*time.Millisecond)
		var last time.Duration
		for at := second; len(opened) > 0; {
			next := <-opened
			last, at = next.Sub(at), next
			require.Less(t, last, 3100*time.Millisecond)
		}
		require.Greater(t, last, 900*time.Millisecond)
		q.release()
		_, after := q.next()
		require.Less(t, after, 3100*time.Millisecond)
		q.release()
	})
}

// ending ends each watch at once, half of them with an error.
type ending struct {
	clientv3.Watcher
	opened chan time.Time
}

func (e ending) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	e.opened <- time.Now()
	c := make(chan clientv3.WatchResponse, 1)
	if len(e.opened)%2 == 0 {
		c <- clientv3.WatchResponse{Canceled: true}
	}
	close(c)
	return c
}
