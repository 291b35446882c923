package scan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestEtcdKilledAndRestarted(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected()
	w.acquire("a", "b")
	w.inLine()
	w.etcd.Kill(0)
	w.eventually(func() bool { return !w.Status().Connected }, "lost")
	require.Len(t, w.known(), 2, "what is known stays")
	require.NoError(t, w.etcd.Restart(w.ctx()))
	w.connected()
	w.acquire("c")
	w.inLine()
	require.NoError(t, w.Status().LastError)
	require.Zero(t, w.stats().Drift)
	require.Zero(t, w.Status().Restarts[ReasonRegressed])
	require.EqualValues(t, 3, w.stats().Acquired)
}

func TestStartedWhileEtcdIsDown(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	cluster.Kill(0)
	w := start(t, cluster, nil)
	w.eventually(func() bool { return w.Status().LastError != nil }, "an error shown")
	require.Zero(t, w.Status().Listed)
	require.NoError(t, cluster.Restart(w.ctx()))
	w.connected()
	require.NotZero(t, w.Status().Listed)
	w.acquire("a")
	w.inLine()
}

func TestCompactedWhileDisconnected(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	p := cluster.Proxy(0)
	w := start(t, cluster, p)
	w.connected()
	w.acquire("a", "b")
	w.inLine()
	p.Cut()
	w.release("a")
	w.acquire("c")
	resp, err := w.etcd.Client.Put(w.ctx(), "/elsewhere", "v")
	require.NoError(t, err)
	_, err = w.etcd.Client.Compact(w.ctx(), resp.Header.Revision)
	require.NoError(t, err)
	require.NoError(t, p.Heal())
	w.inLine()
	w.connected()
	s := w.stats()
	require.EqualValues(t, 3, s.Acquired)
	require.EqualValues(t, 1, s.Released)
	require.Zero(t, s.Drift)
}

// A watch from a revision that is gone is what a client that reconnects by
// itself within the freshness asks for.
func TestWatchFromACompactedRevision(t *testing.T) {
	t.Parallel()
	w := idle(t)
	head, err := w.checkHistory(w.ctx())
	require.NoError(t, err)
	rev := head.Revision
	w.acquire("a", "b")
	_, err = w.etcd.Client.Compact(w.ctx(), rev+2)
	require.NoError(t, err)
	err = w.watch(rev).run().Run(w.ctx())
	require.Equal(t, etcd.Compacted, classify(err), "%v", err)
	l := lister{kv: w.etcd.Client.KV, layout: layout, timeout: answer}
	_, err = l.run(w.ctx(), rev)
	require.Equal(t, etcd.Compacted, classify(err), "%v", err)
}

func TestHangingWatchIsStalledWithinFreshness(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	p := cluster.Proxy(0)
	w := start(t, cluster, p)
	w.connected()
	w.acquire("a")
	w.inLine()
	began := time.Now()
	p.Blackhole()
	w.restarted(etcd.Stalled)
	require.Less(t, time.Since(began), 4*freshness, "not by the keepalive of the connection")
	require.False(t, w.Status().Connected)
	w.acquire("b")
	require.NoError(t, p.Heal())
	w.connected()
	w.inLine()
}

// The server may also hang before it has confirmed the watch: the client's
// Watch waits for that without end.
func TestHangBeforeTheWatchIsConfirmed(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	p := cluster.Proxy(0)
	w := &world{t: t, etcd: cluster}
	w.Scanner = newScanner(t, client(t, p.Addr()))
	head, err := w.checkHistory(w.ctx())
	require.NoError(t, err)
	p.HoldReplies()
	began := time.Now()
	require.ErrorIs(t, w.watch(head.Revision).run().Run(w.ctx()), etcd.ErrSilent)
	require.Less(t, time.Since(began), 4*freshness)
	require.NoError(t, p.Heal())
}

func TestNoLeader(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{Members: 3})
	w := start(t, cluster, nil)
	w.connected()
	w.acquire("a")
	w.inLine()
	cluster.Kill(1)
	cluster.Kill(2)
	w.eventually(func() bool { return !w.Status().Connected }, "lost")
	w.eventually(func() bool {
		r := w.Status().Restarts
		return r[etcd.NoLeader] > 0
	}, "no leader")
	require.NoError(t, cluster.Restart(w.ctx()))
	w.connected()
	w.acquire("b")
	w.inLine()
}

func TestAnotherClusterIsForgottenAndRelisted(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected()
	w.acquire("old", "old2")
	w.inLine()
	w.etcd.Kill(0)
	require.NoError(t, w.etcd.Wipe())
	require.NoError(t, w.etcd.Restart(w.ctx()))
	w.acquire("new")
	w.restarted(ReasonRegressed)
	w.connected()
	w.inLine()
	require.Contains(t, w.known(), "new")
	require.Equal(t, 1, w.Status().History)
	resp, err := w.etcd.Client.Get(w.ctx(), "k")
	require.NoError(t, err)
	w.eventually(func() bool { return w.Status().Revision == resp.Header.Revision }, "the revision, which follows the locks")
	require.Zero(t, w.stats().Released, "nobody released them")
}

func TestRevertedClusterIsForgottenAndRelisted(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected()
	w.acquire("kept")
	w.inLine()
	w.etcd.Kill(0)
	require.NoError(t, w.etcd.Save())
	require.NoError(t, w.etcd.Restart(w.ctx()))
	w.connected()
	w.acquire("a", "b", "c")
	w.inLine()
	w.etcd.Kill(0)
	require.NoError(t, w.etcd.Revert())
	require.NoError(t, w.etcd.Restart(w.ctx()))
	w.restarted(ReasonRegressed)
	w.connected()
	w.inLine()
	require.Len(t, w.known(), 1)
}

func TestIdleClusterStaysConnected(t *testing.T) {
	t.Parallel()
	w := start(t, single(t), nil)
	w.connected()
	began := time.Now()
	w.eventually(func() bool {
		require.True(t, w.Status().Connected)
		return time.Since(began) > freshness*3/2
	}, "longer than the freshness")
	for reason, n := range w.Status().Restarts {
		require.Zero(t, n, reason)
	}
}

func TestRunEndsWithinASecond(t *testing.T) {
	t.Parallel()
	t.Run("connected", func(t *testing.T) {
		cluster := single(t)
		s := newScanner(t, client(t, cluster.Addr(0)))
		stop := background(t, s.Run)
		etcdtest.Eventually(t, func() bool { return s.Status().Connected })
		require.NoError(t, stop())
	})
	t.Run("black hole", func(t *testing.T) {
		cluster := single(t)
		p := cluster.Proxy(0)
		s := newScanner(t, client(t, p.Addr()))
		stop := background(t, s.Run)
		etcdtest.Eventually(t, func() bool { return s.Status().Connected })
		p.Blackhole()
		require.NoError(t, stop())
	})
	t.Run("black hole, stalled", func(t *testing.T) {
		cluster := single(t)
		p := cluster.Proxy(0)
		s := newScanner(t, client(t, p.Addr()))
		stop := background(t, s.Run)
		etcdtest.Eventually(t, func() bool { return s.Status().Connected })
		p.Blackhole()
		etcdtest.Eventually(t, func() bool { return !s.Status().Connected })
		require.NoError(t, stop())
	})
	t.Run("absent", func(t *testing.T) {
		s := newScanner(t, client(t, "127.0.0.1:1"))
		stop := background(t, s.Run)
		require.NoError(t, stop())
	})
}
