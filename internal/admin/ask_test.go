package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// A holder that lives is asked by three at once and one later: all get its stack and its status as of then, and the lock
// answers at most once in five seconds.
func TestAsk(t *testing.T) {
	bubble(t, func(w *world, cluster *memetcd.Cluster, _ *memetcd.Link) {
		link, err := cluster.Connect()
		require.NoError(t, err)
		locks, err := mutex.New(link.Client, mutex.KeepAlive(time.Hour), mutex.Prefix(w.Admin.Prefix()))
		require.NoError(t, err)
		l, err := locks.Lock(w.t.Context(), "a/b", mutex.OnAsk(func() string { return time.Now().Format(time.StampMilli) }))
		require.NoError(t, err)
		<-time.After(time.Minute)
		type answer struct {
			admin.Detail
			err  error
			took time.Duration
		}
		answers := make(chan answer)
		asked := func() {
			began := time.Now()
			d, err := w.Ask(context.Background(), "a/b")
			answers <- answer{d, err, time.Since(began)}
		}
		status := map[string]bool{}
		for i := range 4 {
			go asked()
			if i == 2 {
				<-time.After(300 * time.Millisecond)
			}
		}
		for i := range 4 {
			a := <-answers
			require.NoError(w.t, a.err)
			if i == 0 {
				require.Less(w.t, a.took, time.Second)
			}
			require.LessOrEqual(w.t, a.took, 6*time.Second)
			status[a.Status] = true
			require.Equal(w.t, l.UUID(), a.UUID)
		}
		require.Len(w.t, status, 2, "the one of the first, and one for all others")
		resp, err := w.Client.Get(w.t.Context(), "/unlocker/ask/mutexes/a/b//"+l.UUID())
		require.NoError(w.t, err)
		require.Len(w.t, resp.Kvs, 1)
		require.NotZero(w.t, resp.Kvs[0].Lease)
		require.Regexp(w.t, `^\{"at":"20..-.*Z","by":".+@.+"\}$`, string(resp.Kvs[0].Value))
		require.NoError(w.t, l.Unlock(w.t.Context()))
	})
}

// Nobody answers: said within five seconds, and nothing is written but the question.
func TestAskADeadHolder(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, link *memetcd.Link) {
		w.take("a", time.Hour, time.Hour)
		<-time.After(time.Minute)
		keys := func() any {
			resp, err := w.Client.Get(w.t.Context(), w.Etcd.Prefix, clientv3.WithPrefix())
			require.NoError(w.t, err)
			return resp.Kvs
		}
		before := keys()
		began := time.Now()
		_, err := w.Ask(w.t.Context(), "a")
		require.ErrorContains(w.t, err, `lock "a": its process does not answer within 5s; last renewed at 20`)
		require.ErrorContains(w.t, err, "1m5s ago, by its clock")
		require.InDelta(w.t, 5*time.Second, time.Since(began), float64(500*time.Millisecond))
		require.Equal(w.t, before, keys())
		time.AfterFunc(3*time.Second, func() { w.Renew("a", time.Now(), time.Now().Add(time.Hour)) })
		_, err = w.Ask(w.t.Context(), "a")
		require.ErrorContains(w.t, err, "(3s ago, by its clock)", "a client that answers no questions renewed meanwhile")

		_, err = w.Ask(w.t.Context(), "b")
		require.ErrorIs(w.t, err, lockstore.ErrNoLock)
		w.Put(clientv3.OpPut(w.Etcd.Prefix+"b/hostname", "x"))
		_, err = w.Ask(w.t.Context(), "b")
		require.ErrorIs(w.t, err, lockstore.ErrNoUUID)

		time.AfterFunc(time.Second, func() { w.Put(clientv3.OpDelete(w.Etcd.Prefix+"a/", clientv3.WithPrefix())) })
		_, err = w.Ask(w.t.Context(), "a")
		require.ErrorContains(w.t, err, "released or removed while its holder was asked")

		w.take("a", time.Hour, time.Hour)
		link.Allow("/mutexes/", "/mutexes0")
		link.Allow("/unlocker/pause/", "/unlocker/pause0")
		_, err = w.Ask(w.t.Context(), "a")
		require.ErrorContains(w.t, err, "needs readwrite on [/unlocker/ask/mutexes/")
	})
}
