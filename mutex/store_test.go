//go:build go1.25

package mutex_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// As many locks share a transaction as etcd allows, by their keys and by their size, and no more.
func TestLocksShareTransactions(t *testing.T) {
	var many []mutex.Option
	for i := range 32 {
		many = append(many, mutex.Metadata(fmt.Sprint("m", i), "1"))
	}
	for name, tc := range map[string]struct {
		large, small      int // how many locks have many fields, and one
		bytes             int // of that
		taking, releasing int64
	}{
		"small":          {small: 240, bytes: 1, taking: 2, releasing: 2},
		"one is larger":  {large: 1, small: 99, bytes: 1, taking: 2, releasing: 2},
		"32 long values": {small: 32, bytes: 60 << 10, taking: 2, releasing: 1},
		"34 long values": {small: 34, bytes: 60 << 10, taking: 3, releasing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				var requests atomic.Int64
				c := counted(w, &requests, mutex.Backtrace(false))
				locks, _, err := c.TryLockAll(t.Context(), numbered("large", tc.large), many...)
				require.NoError(t, err)
				small, _, err := c.TryLockAll(t.Context(), numbered("small", tc.small), mutex.Metadata("m", strings.Repeat("x", tc.bytes)))
				require.NoError(t, err)
				require.Equal(t, tc.taking, requests.Swap(0))
				require.NoError(t, c.UnlockAll(t.Context(), append(locks, small...)...))
				require.Equal(t, tc.releasing, requests.Load())
				require.Empty(t, w.fields())
			})
		})
	}
}

// As many slots are read together as etcd allows, and as many locks are taken.
func TestManySlotsOfManyLocks(t *testing.T) {
	for slots, want := range map[int]int64{
		100:  3,  // two that read 5,000 slots, one that takes 50 of them
		1000: 16, // etcd refuses to read those of 50, 25, 13 or 12 locks, and reads those of 7 or 6
	} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			on(t, func(t *testing.T, w world) {
				var requests atomic.Int64
				c := counted(w, &requests, mutex.Backtrace(false))
				locks, held, err := c.TryLockAll(t.Context(), numbered("", 50), mutex.Slots(slots))
				require.NoError(t, err)
				require.Empty(t, held)
				require.Equal(t, want, requests.Load())
				require.NoError(t, c.UnlockAll(t.Context(), locks...))
			})
		})
	}
}

// What etcd does not answer is repeated as it was: not in halves, as what it refuses.
func TestAnOutageHalvesNothing(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		kv, sent := failing(link.Client.KV, rpctypes.ErrTimeout)
		link.Client.KV = kv
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, _, err = newClient(t, link.Client).TryLockAll(ctx, numbered("", 64))
		require.ErrorIs(t, err, rpctypes.ErrTimeout)
		require.Less(t, sent.Load(), int64(20))
	})
}

// What listens for questions pauses for longer and longer where etcd fails at once.
func TestQuestionsOfAnEtcdThatFails(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		var reads atomic.Int64
		link.Client.KV = failingReads{link.Client.KV, rpctypes.ErrTimeout, &reads}
		l, err := newClient(t, link.Client, mutex.KeepAlive(time.Hour)).Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(time.Minute)
		require.InDelta(t, 35, reads.Load(), 15)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// failingReads is a connection on which every read fails, and is counted.
type failingReads struct {
	clientv3.KV
	err   error
	reads *atomic.Int64
}

func (f failingReads) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	f.reads.Add(1)
	return nil, f.err
}

// A call of Lock that etcd refuses is no wait.
func TestARefusedLockIsNoWait(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		link.Client.KV, _ = failing(link.Client.KV, rpctypes.ErrDuplicateKey)
		var s seen
		_, err = newClient(t, link.Client, mutex.Observe(nil), mutex.Observe(s.add)).Lock(t.Context(), "a")
		require.ErrorIs(t, err, rpctypes.ErrDuplicateKey)
		kinds, _ := s.take("")
		require.Empty(t, kinds)
	})
}

// A refusal is not followed by the question who holds the lock, nor by a release of what it cannot have taken.
func TestARefusedLockIsOneRequest(t *testing.T) {
	simulated(t, func(t *testing.T, cluster *memetcd.Cluster, _ connect) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		kv, sent := failing(link.Client.KV, rpctypes.ErrPermissionDenied)
		link.Client.KV = kv
		_, err = newClient(t, link.Client).TryLock(t.Context(), "a")
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		synctest.Wait()
		require.EqualValues(t, 1, sent.Load())
	})
}
