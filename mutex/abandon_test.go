//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// A lock that an attempt has taken stays while it is held, however many of its attempts were not
// answered: also after an Unlock that failed, and while the client abandons other claims.
func TestAHeldLockIsNeverAbandoned(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(24*time.Hour), mutex.Expect(time.Hour))
		_, admin := connect()
		disturb(link, 1, memetcd.Faults{Request: 3 * time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.TryLock(ctx, "failed")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for name, f := range map[string]memetcd.Faults{
			"late": {Request: 8 * time.Second}, "lost": {HoldRequests: true}, "unanswered": {HoldAnswers: true},
		} {
			disturb(link, 2, f)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			l, err := c.TryLock(ctx, name)
			require.NoError(t, err)
			stays := func() {
				t.Helper()
				<-time.After(time.Hour)
				require.NoError(t, l.Held())
				resp, err := admin.Client.Get(t.Context(), "/mutexes/"+name+"/uuid")
				require.NoError(t, err)
				require.Len(t, resp.Kvs, 1, name)
				require.Equal(t, l.UUID(), string(resp.Kvs[0].Value))
				require.Equal(t, l.Token(), resp.Kvs[0].ModRevision)
			}
			stays()
			link.Set(memetcd.Unreachable())
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, l.Unlock(ctx), context.DeadlineExceeded)
			link.Set(memetcd.Faults{})
			<-time.After(time.Hour)
			resp, err := admin.Client.Get(t.Context(), "/mutexes/"+name+"/uuid")
			require.NoError(t, err)
			require.Len(t, resp.Kvs, 1, "released although Unlock has failed")
			require.NoError(t, l.Unlock(t.Context()))
		}
		<-time.After(time.Hour)
		resp, err := admin.Client.Get(t.Context(), "/mutexes/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Empty(t, resp.Kvs)
	})
}

// goroutines counts those that are started and not ended by clients.
func goroutines() int {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Count(string(stacks), "created by github.com/etcd-unlocker/unlocker/mutex.(*")
}

// Many failed claims are abandoned by one goroutine in few transactions, and the oldest not at all.
// Those of the others that etcd executes late are released.
func TestManyAbandonedLocks(t *testing.T) {
	const most, more = 1000, 201
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(time.Hour))
		_, admin := connect()
		var sent atomic.Int64
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if r, ok := req.(*etcdserverpb.TxnRequest); ok && r.Success[0].GetRequestPut() != nil {
				return memetcd.Faults{Request: time.Minute}
			}
			if _, ok := req.(*etcdserverpb.StatusRequest); ok { // by which the client looks for the cause
				return memetcd.Faults{}
			}
			return memetcd.Unreachable()
		})
		for i := range most + more {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := c.TryLock(ctx, fmt.Sprintf("%04d", i))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if _, ok := req.(*etcdserverpb.TxnRequest); ok {
				sent.Add(1)
			}
			return memetcd.Faults{}
		})
		require.Equal(t, 1, goroutines())
		<-time.After(30 * time.Minute)
		require.Less(t, sent.Load(), int64(most/4), "transactions")
		resp, err := admin.Client.Get(t.Context(), "/mutexes/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		var left []string
		for _, kv := range resp.Kvs {
			if name, isUUID := strings.CutSuffix(strings.TrimPrefix(string(kv.Key), "/mutexes/"), "/uuid"); isUUID {
				left = append(left, name)
			}
		}
		require.Len(t, left, more)
		require.Equal(t, fmt.Sprintf("%04d", more-1), left[more-1])
	})
}

// The goroutine ends with etcd's client.
func TestAbandonedLocksEndWithTheClient(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(time.Hour))
		link.Set(memetcd.Unreachable())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.TryLock(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Equal(t, 1, goroutines())
		require.NoError(t, link.Client.Close())
		synctest.Wait()
		require.Zero(t, goroutines())
	})
}

// An attempt may take the lock after it was lost and released.
func TestALateAttemptOfALostLockIsAbandoned(t *testing.T) {
	simulated(t, func(t *testing.T, _ *memetcd.Cluster, connect connect) {
		c, link := connect(mutex.Patience(time.Minute))
		_, admin := connect()
		disturb(link, 1, memetcd.Faults{Request: 57 * time.Second})
		began := time.Now()
		at := func(d time.Duration) { <-time.After(time.Until(began.Add(d))) }
		l, err := c.TryLock(t.Context(), "a")
		require.NoError(t, err)
		at(56 * time.Second)
		require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrDeadline)
		at(56500 * time.Millisecond)
		require.Empty(t, uuidIn(t, admin, "a"))
		require.Equal(t, l.UUID(), nextUUID(t, admin, "a"), "it was executed")
		at(61 * time.Second)
		require.Empty(t, uuidIn(t, admin, "a"))
		sent := count[memetcd.Message](link)
		<-time.After(time.Hour)
		require.Zero(t, sent.Load())
	})
}

// A release that etcd has answered is not repeated, whatever the answer.
func TestAnAnsweredReleaseIsTheLast(t *testing.T) {
	for name, answer := range map[string]error{"released": nil, "refused": rpctypes.ErrPermissionDenied} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
				link, err := cluster.Connect()
				require.NoError(t, err)
				var txns atomic.Int64
				link.Client.KV = hooked{link.Client.KV, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					if txns.Add(1) > 1 && answer != nil {
						return nil, answer
					}
					return txn.Commit()
				}}
				disturb(link, 1, memetcd.Faults{HoldAnswers: true})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = newClient(t, link.Client, mutex.Patience(time.Hour)).TryLock(ctx, "a")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				<-time.After(2 * time.Hour)
				require.EqualValues(t, 2, txns.Load())
				require.Equal(t, answer == nil, uuidIn(t, link, "a") == "")
			})
		})
	}
}

// hooked gives its transactions to a function that commits them.
type hooked struct {
	clientv3.KV
	commit func(clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (h hooked) Txn(ctx context.Context) clientv3.Txn { return &hookedTxn{h.KV.Txn(ctx), h.commit} }

// failing returns a connection on which every transaction fails, and how many there were.
func failing(kv clientv3.KV, err error) (clientv3.KV, *atomic.Int64) {
	sent := new(atomic.Int64)
	return hooked{kv, func(clientv3.Txn) (*clientv3.TxnResponse, error) {
		sent.Add(1)
		return nil, err
	}}, sent
}

// An attempt that etcd has refused before its log cannot be executed late.
func TestRefusedAttemptsAreNotAbandoned(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"too many requests": {rpctypes.ErrTooManyRequests, 0},
		"connection lost":   {status.Error(codes.Unavailable, `connection error: desc = "error reading from server: EOF"`), 1},
		"timeout":           {rpctypes.ErrTimeout, 1},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T, c *memetcd.Cluster, _ connect) {
				link, err := c.Connect()
				require.NoError(t, err)
				link.Client.KV, _ = failing(link.Client.KV, tc.err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = newClient(t, link.Client).TryLock(ctx, "a")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, tc.err)
				require.Equal(t, tc.want, goroutines())
			})
		})
	}
}

// The transaction that fills etcd is executed, although etcd answers that it has no space.
func TestTheLastLockOfAFullEtcdIsAbandoned(t *testing.T) {
	on(t, func(t *testing.T, w world) {
		etcd := w.connect()
		var once atomic.Bool
		etcd.KV = hooked{etcd.KV, func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
			resp, err := txn.Commit()
			if err == nil && once.CompareAndSwap(false, true) {
				return nil, rpctypes.ErrNoSpace
			}
			return resp, err
		}}
		_, err := w.over(etcd, mutex.Patience(time.Hour)).TryLock(t.Context(), "x")
		require.ErrorIs(t, err, mutex.ErrNoSpace)
		eventually(t, func() bool { return len(w.fields()) == 0 }, "the lock stays")
	})
}
