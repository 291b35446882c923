package sim

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// After a restore etcd neither answers nor refuses requests with a simple token of before, until its log is as long again.
// A holder of the Go client logs in by its watch. A client without one does so once no answer has come.
func TestGoClientsLogInAgainAfterARestore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)))
		ctx := t.Context()
		e, err := startVirtual(dir)
		require.NoError(t, err)
		open, err := e.admin.client()
		require.NoError(t, err)
		for range 1000 {
			_, err = open.Put(ctx, "elsewhere", "")
			require.NoError(t, err)
		}
		require.NoError(t, addUsers(ctx, open, "root"))
		_, err = open.AuthEnable(ctx)
		require.NoError(t, err)
		require.NoError(t, open.Close())
		var logins atomic.Int32
		var slow atomic.Bool
		connect := func() (*mutex.Client, func()) {
			n := e.connect(false)
			c, err := n.client(asRoot)
			require.NoError(t, err)
			n.onRequest(func(req any) {
				switch req.(type) {
				case *pb.AuthenticateRequest:
					logins.Add(1)
				case *pb.TxnRequest:
					if slow.Load() {
						time.Sleep(6 * time.Second)
					}
				}
			})
			m, err := mutex.New(c)
			require.NoError(t, err)
			return m, func() { _ = c.Close() }
		}
		holder, closeHolder := connect()
		held, err := holder.Lock(ctx, "a", mutex.Patience(time.Minute), mutex.KeepAlive(time.Hour))
		require.NoError(t, err)
		idle, closeIdle := connect()

		path, err := e.snapshot()
		require.NoError(t, err)
		e.kill()
		require.NoError(t, e.replace(path, memetcd.Restored{}, func() {}))
		soon, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		l, err := idle.Lock(soon, "b")
		require.NoError(t, err)
		require.NoError(t, l.Unlock(ctx))
		time.Sleep(2 * time.Minute)
		require.NoError(t, held.Unlock(ctx))

		slow.Store(true) // and a login with each attempt would make it slower
		before := logins.Load()
		soon, cancel = context.WithTimeout(ctx, 50*time.Second)
		defer cancel()
		_, err = idle.Lock(soon, "b")
		require.ErrorIs(t, err, mutex.ErrUnreachable)
		require.EqualValues(t, 1, logins.Load()-before)
		slow.Store(false)
		time.Sleep(time.Minute) // what was not answered is released
		closeHolder()
		closeIdle()
		e.close()
	})
}
