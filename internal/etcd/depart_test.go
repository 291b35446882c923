package etcd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// put sends one transaction with a departure.
func put(t *testing.T, c *Client, d *Departure) error {
	t.Helper()
	_, err := c.Txn(d.With(t.Context())).Then(clientv3.OpPut(prefix+"k", "v")).Commit()
	return err
}

func written(t *testing.T, c *Client) bool {
	t.Helper()
	resp, err := c.Get(t.Context(), prefix+"k")
	require.NoError(t, err)
	return len(resp.Kvs) > 0
}

func opened() bool { return true }

func TestS3_ARequestAsksOnceItGoesOnAConnection(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	c := mustNew(t, options(cluster.Addr(0)))
	d := &Departure{Open: opened}
	require.NoError(t, put(t, c, d))
	require.False(t, d.Refused())
	require.Error(t, put(t, c, d), "once")
	require.True(t, d.Refused())

	_, err := c.Delete(t.Context(), prefix+"k")
	require.NoError(t, err)
	closed := &Departure{Open: func() bool { return false }}
	require.Error(t, put(t, c, closed))
	require.True(t, closed.Refused())
	require.False(t, written(t, c))
}

// The client waits for a connection, and what it waits for begins meanwhile.
func TestS3_ARequestAsksAfterItHasWaitedForAConnection(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	c := mustNew(t, options(cluster.Addr(0)))
	require.False(t, written(t, c))
	cluster.Kill(0)
	etcdtest.Eventually(t, func() bool { return c.ActiveConnection().GetState().String() != "READY" }, "the connection is lost")
	var open atomic.Bool
	var asked atomic.Int32
	open.Store(true)
	d := &Departure{Open: func() bool { asked.Add(1); return open.Load() }}
	done := make(chan error)
	go func() { done <- put(t, c, d) }()
	<-time.After(100 * time.Millisecond) // a request that asked too early would have
	require.Zero(t, asked.Load())
	open.Store(false)
	require.NoError(t, cluster.Restart(t.Context()))
	require.Error(t, <-done)
	require.True(t, d.Refused())
	require.EqualValues(t, 1, asked.Load())
	require.False(t, written(t, c))
}

// All members have stopped, as for a restore: what was read before is not known to be there.
func TestS4_ARequestGoesOnNoConnectionThatBeganSinceTheRead(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	c := mustNew(t, options(cluster.Addr(0)))
	require.False(t, written(t, c))
	read := time.Now()
	cluster.Kill(0)
	require.NoError(t, cluster.Restart(t.Context()))
	require.False(t, written(t, c), "connected again")
	d := &Departure{Open: opened, Read: read}
	require.Error(t, put(t, c, d))
	require.True(t, d.Refused())
	require.False(t, written(t, c))
	require.NoError(t, put(t, c, &Departure{Open: opened, Read: time.Now()}))
}

// etcd's client logs in again and repeats the request.
func TestS3_ARequestIsNotRepeatedAfterALogin(t *testing.T) {
	t.Parallel()
	cluster := guarded(t, time.Second)
	c := mustNew(t, asAda(cluster.Addr(0)))
	require.False(t, written(t, c))
	<-time.After(3 * time.Second) // the token has expired
	d := &Departure{Open: opened}
	require.Error(t, put(t, c, d))
	require.True(t, d.Refused())
	require.NoError(t, put(t, c, &Departure{Open: func() bool { return !written(t, c) }}), "logged in, and not yet sent")
}
