//go:build go1.25

package mutex_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// late is a connection on which the first transactions, as many as fit into first, are not answered,
// and executed when the test says so.
type late struct {
	clientv3.KV
	// silent reports whether the others are not answered either. Then the caller gives up.
	silent atomic.Bool
	giveUp context.CancelFunc
	sent   atomic.Int64
	first  chan clientv3.Txn
}

func (l *late) Txn(ctx context.Context) clientv3.Txn {
	if l.sent.Load() < int64(cap(l.first)) { // it is executed when its caller has given up
		ctx = context.WithoutCancel(ctx)
	}
	return &hookedTxn{l.KV.Txn(ctx), l.commit}
}

func (l *late) commit(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
	if l.sent.Add(1) <= int64(cap(l.first)) {
		l.first <- txn
		return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
	}
	if l.silent.Load() {
		l.giveUp()
		return nil, context.DeadlineExceeded
	}
	return txn.Commit()
}

// hookedTxn is given to a function that commits it.
type hookedTxn struct {
	clientv3.Txn
	commit func(clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (t *hookedTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(cs...)
	return t
}

func (t *hookedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *hookedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *hookedTxn) Commit() (*clientv3.TxnResponse, error) { return t.commit(t.Txn) }

// execute makes etcd execute the next of the first transactions, which then takes the lock.
func (l *late) execute(t *testing.T) {
	t.Helper()
	resp, err := (<-l.first).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded)
}

// etcd executes an attempt long after Lock has returned an error: the lock does not stay.
func TestALateAttemptOfAFailedLockIsAbandoned(t *testing.T) {
	tryLock := func(ctx context.Context, c *mutex.Client, name string) error {
		_, err := c.TryLock(ctx, name)
		return err
	}
	for name, tc := range map[string]struct {
		silent bool
		held   bool // by another at the second attempt
		waits  bool // until the caller gives up
		lock   func(context.Context, *mutex.Client, string) error
	}{
		"no answer": {silent: true, lock: tryLock},
		"held":      {held: true, lock: tryLock},
		"waited": {held: true, waits: true, lock: func(ctx context.Context, c *mutex.Client, name string) error {
			_, err := c.Lock(ctx, name)
			return err
		}},
		"several": {held: true, lock: func(ctx context.Context, c *mutex.Client, name string) error {
			taken, held, err := c.TryLockAll(ctx, []string{name})
			require.NoError(t, err)
			require.Empty(t, taken)
			return held[0]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				etcd := w.connect()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				kv := &late{KV: etcd.KV, first: make(chan clientv3.Txn, 1), giveUp: cancel}
				kv.silent.Store(tc.silent)
				etcd.KV = kv
				watches := make(chan int64, 1)
				etcd.Watcher = watched{etcd.Watcher, watches}
				c := w.over(etcd, mutex.Patience(time.Hour))
				var other *mutex.Lock
				if tc.held {
					var err error
					other, err = w.client().TryLock(t.Context(), name)
					require.NoError(t, err)
				}
				if tc.waits {
					go func() {
						select {
						case <-watches:
							cancel()
						case <-ctx.Done():
						}
					}()
				}
				err := tc.lock(ctx, c, name)
				require.Error(t, err)
				require.Equal(t, tc.held, errors.Is(err, mutex.ErrHeld), err)
				if tc.held {
					require.NoError(t, other.Unlock(t.Context()))
				}
				kv.silent.Store(false)
				sent := kv.sent.Load()
				eventually(t, func() bool { return kv.sent.Load() > sent+3 }, "released although it was not taken yet")
				kv.execute(t)
				eventually(t, func() bool { return len(w.fields()) == 0 }, "the lock stays")
			})
		})
	}
}

// etcd executes several attempts of a failed lock, each after the one before was abandoned.
func TestEachLateAttemptIsAbandoned(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		etcd := w.connect()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kv := &late{KV: etcd.KV, first: make(chan clientv3.Txn, 3), giveUp: cancel}
		kv.silent.Store(true)
		etcd.KV = kv
		c := w.over(etcd, mutex.Patience(time.Hour))
		_, err := c.TryLock(ctx, "x")
		require.ErrorIs(t, err, context.Canceled)
		kv.silent.Store(false)
		for range 3 {
			kv.execute(t)
			eventually(t, func() bool { return len(w.fields()) == 0 }, "the lock stays")
		}
	})
}

// etcd executes an attempt after the lock, which the next attempt has taken, was released.
func TestALateAttemptOfAReleasedLockIsAbandoned(t *testing.T) {
	for name, release := range map[string]func(context.Context, *mutex.Client, *mutex.Lock) error{
		"one":     func(ctx context.Context, _ *mutex.Client, l *mutex.Lock) error { return l.Unlock(ctx) },
		"several": func(ctx context.Context, c *mutex.Client, l *mutex.Lock) error { return c.UnlockAll(ctx, l) },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				etcd := w.connect()
				kv := &late{KV: etcd.KV, first: make(chan clientv3.Txn, 1)}
				etcd.KV = kv
				c := w.over(etcd, mutex.Patience(time.Hour))
				l, err := c.TryLock(t.Context(), name)
				require.NoError(t, err)
				require.NoError(t, release(t.Context(), c, l))
				other, err := w.client().TryLock(t.Context(), name)
				require.NoError(t, err)
				sent := kv.sent.Load()
				eventually(t, func() bool { return kv.sent.Load() > sent+3 }, "nothing is abandoned")
				require.NoError(t, other.Unlock(t.Context()), "the lock of another was abandoned")
				kv.execute(t)
				eventually(t, func() bool { return len(w.fields()) == 0 }, "the lock stays")
			})
		})
	}
}

// etcd executes an attempt right before its deadline: the lock is gone by then, and not left to a daemon, which would alert.
func TestTheLastReleaseIsAtTheDeadline(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(20 * time.Second))
		_, admin := connect()
		began := time.Now()
		disturb(link, 1, memetcd.Faults{Request: 19900 * time.Millisecond})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.TryLock(ctx, "a")
		require.Error(t, err)
		left := func() int {
			resp, err := admin.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
			require.NoError(t, err)
			return len(resp.Kvs)
		}
		<-time.After(time.Until(began.Add(19950 * time.Millisecond)))
		require.NotZero(t, left())
		<-time.After(100 * time.Millisecond)
		require.Zero(t, left())
	})
}

// The releases of many attempts that were not answered become rarer each, however many others are due meanwhile.
func TestManyLateReleasesBecomeRarer(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(time.Minute))
		link.Set(memetcd.Unreachable())
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := c.TryLock(ctx, fmt.Sprint("a/", i))
			require.Error(t, err)
			cancel()
		}
		sent := count[*etcdserverpb.TxnRequest](link)
		link.Set(memetcd.Faults{})
		link.Break()
		<-time.After(2 * time.Minute)
		require.Less(t, sent.Load(), int64(1000))
	})
}
