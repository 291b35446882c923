//go:build go1.25

package mutex_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// A lock is watched soon, however often it is renewed.
func TestAnOftenRenewedLockIsWatched(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Backtrace(false), mutex.Patience(time.Hour))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		watches := count[*etcdserverpb.WatchRequest](link)
		for shorter := range 3 {
			time.Sleep(40 * time.Millisecond)
			require.NoError(t, l.Alive(t.Context(), mutex.Patience(time.Hour-time.Duration(1+shorter)*time.Minute)))
		}
		require.NotZero(t, watches.Load())
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// guarded has a lock whose watches are those of a watcher, and returns when they were opened in a minute.
func guarded(t *testing.T, watcher func(clientv3.Watcher, chan<- time.Time) clientv3.Watcher) (opened []time.Time) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		_, link := connect()
		times := make(chan time.Time, 1000)
		link.Client.Watcher = watcher(link.Client.Watcher, times)
		l, err := newClient(t, link.Client, mutex.Backtrace(false)).Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.NoError(t, l.Held())
		require.NoError(t, l.Unlock(t.Context()))
		for len(times) > 0 {
			opened = append(opened, <-times)
		}
	})
	return opened
}

// A watch that breaks at once is opened again after ever longer pauses, up to two seconds, as that of a waiter.
func TestBrokenWatchesOfALock(t *testing.T) {
	opened := guarded(t, func(w clientv3.Watcher, opened chan<- time.Time) clientv3.Watcher {
		return onlyUUID{w, opened, ending{w, make(chan time.Time, 1000)}.Watch}
	})
	require.InDelta(t, 35, len(opened), 15)
}

// A watch that breaks after a while is opened again at once, each time.
func TestWatchesOfALockThatBreakAfterAWhile(t *testing.T) {
	const lasts = 5 * time.Second
	opened := guarded(t, func(w clientv3.Watcher, opened chan<- time.Time) clientv3.Watcher {
		return onlyUUID{w, opened, func(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(lasts, cancel)
			return w.Watch(ctx, key, opts...)
		}}
	})
	require.Len(t, opened, 12)
	for i := range opened[1:] {
		require.Less(t, opened[i+1].Sub(opened[i]), lasts+100*time.Millisecond)
	}
}

// A lock that cannot be read after its watch broke is watched again.
func TestALockIsWatchedAlthoughItCouldNotBeRead(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		_, admin := connect()
		_, link := connect()
		opened, w := make(chan time.Time, 10), link.Client.Watcher
		link.Client.Watcher = onlyUUID{w, opened, func(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
			if len(opened) == 1 {
				return ending{w, make(chan time.Time, 1)}.Watch(ctx, key, opts...)
			}
			return w.Watch(ctx, key, opts...)
		}}
		l, err := newClient(t, link.Client, mutex.Backtrace(false), mutex.Patience(time.Hour)).Lock(t.Context(), "a")
		require.NoError(t, err)
		var reads atomic.Int32
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if r, ok := req.(*etcdserverpb.RangeRequest); !ok || !strings.HasSuffix(string(r.Key), "/uuid") {
				return memetcd.Faults{}
			}
			return memetcd.Faults{HoldRequests: reads.Add(1) == 1}
		})
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, reads.Load())
		_, err = admin.Delete(t.Context(), "/mutexes/a/uuid")
		require.NoError(t, err)
		began := time.Now()
		<-l.Context(t.Context()).Done()
		require.Less(t, time.Since(began), time.Second)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
	})
}

// A loss is reported once, also if the answer to a renewal shows it after the watch.
func TestALossThatIsSeenTwiceIsReportedOnce(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		var lost, late atomic.Int32
		_, admin := connect()
		c, link := connect(mutex.Backtrace(false), mutex.KeepAlive(mutex.Forever), mutex.Patience(30*time.Second), mutex.Observe(func(e mutex.Event) {
			if e.Kind == mutex.EventLost {
				lost.Add(1)
			}
		}))
		l, err := c.Lock(t.Context(), "a")
		require.NoError(t, err)
		other, err := c.Lock(t.Context(), "b") // a renewal ends with the last lock
		require.NoError(t, err)
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if _, ok := req.(*etcdserverpb.TxnRequest); ok {
				late.Add(1)
				return memetcd.Faults{Request: 2 * time.Second}
			}
			return memetcd.Faults{}
		})
		time.Sleep(11 * time.Second)
		require.EqualValues(t, 1, late.Load(), "a renewal is on its way")
		_, err = admin.Delete(t.Context(), "/mutexes/a/uuid")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrForced)
		require.EqualValues(t, 1, lost.Load())
		require.NoError(t, other.Unlock(t.Context()))
	})
}

// A watch that a lagging member resumes shows events of before the lock was taken (etcd-io/etcd#20221).
func TestOldEventsOfALock(t *testing.T) {
	guarded(t, func(w clientv3.Watcher, opened chan<- time.Time) clientv3.Watcher {
		return onlyUUID{w, opened, func(ctx context.Context, key string, _ ...clientv3.OpOption) clientv3.WatchChan {
			old := &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: 1}}
			c := make(chan clientv3.WatchResponse, 1)
			c <- clientv3.WatchResponse{Events: []*clientv3.Event{old}}
			context.AfterFunc(ctx, func() { close(c) })
			return c
		}}
	})
}

// onlyUUID has other watches of the uuids of locks.
type onlyUUID struct {
	clientv3.Watcher
	opened chan<- time.Time
	watch  func(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan
}

func (o onlyUUID) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if !strings.HasSuffix(key, "/uuid") {
		return o.Watcher.Watch(ctx, key, opts...)
	}
	o.opened <- time.Now()
	return o.watch(ctx, key, opts...)
}

// A lock that is held for long keeps nothing of the contexts that it was used with.
func TestContextsAreForgotten(t *testing.T) {
	onEtcd(t, func(t *testing.T, w world) {
		l := w.lock(w.client(), "a")
		for name, use := range map[string]func(context.Context){
			"work": func(parent context.Context) {
				parent, cancel := context.WithCancel(parent)
				ctx := l.Context(parent)
				cancel()
				<-ctx.Done()
			},
			"renewal": func(parent context.Context) { require.NoError(t, l.Alive(parent)) },
		} {
			var forgotten atomic.Bool
			func() {
				type key struct{}
				value := new([1024]byte)
				runtime.SetFinalizer(value, func(*[1024]byte) { forgotten.Store(true) })
				use(context.WithValue(context.Background(), key{}, value))
			}()
			eventually(t, func() bool { runtime.GC(); return forgotten.Load() }, name)
		}
		require.NoError(t, l.Held())
	})
}
