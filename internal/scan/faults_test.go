package scan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
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

func TestStartedWhileEtcdIsDown(t *testing.T) {
	t.Parallel()
	bubbleFrom(t, func(w *bubbled) { w.link.Set(memetcd.Faults{Refuse: true}) }, func(w *bubbled) {
		pass(time.Minute)
		require.Error(t, w.Status().LastError)
		require.Zero(t, w.Status().Listed)
		w.failures(etcd.Timeout)
		w.link.Set(memetcd.Faults{})
		pass(5 * seconds) // the longest backoff
		w.status(true)
		require.NotZero(t, w.Status().Listed)
		w.acquire("a")
		w.inLine()
	})
}

func TestCompactedWhileDisconnected(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *bubbled) {
		w.acquire("a", "b")
		w.inLine()
		w.link.Set(memetcd.Faults{Refuse: true})
		w.release("a")
		w.acquire("c")
		_, err := w.etcd.Client.Compact(w.ctx(), w.cluster.Revision())
		require.NoError(t, err)
		w.link.Set(memetcd.Faults{})
		pass(seconds)
		w.status(true)
		w.inLine()
		w.failures(etcd.Compacted)
		s := w.stats()
		require.EqualValues(t, 3, s.Acquired)
		require.EqualValues(t, 1, s.Released)
		require.Zero(t, s.Drift)
	})
}

func TestHangingWatchIsStalledWithinFreshness(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *bubbled) {
		w.acquire("a")
		w.inLine()
		w.link.Set(memetcd.Unreachable())
		pass(w.Freshness - tolerance/2) // since when it last showed progress
		w.status(true)
		pass(tolerance / 2)
		w.status(false)
		w.failures(etcd.Stalled)
		w.acquire("b")
		w.link.Set(memetcd.Faults{})
		pass(timeout + 5*seconds)
		w.status(true)
		w.inLine()
	})
}

// The server may also hang before it has confirmed the watch: the client's
// Watch waits for that without end.
func TestHangBeforeTheWatchIsConfirmed(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *bubbled) {
		began := time.Now()
		w.link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			_, watch := req.(*etcdserverpb.WatchRequest)
			return memetcd.Faults{HoldRequests: watch}
		})
		require.ErrorIs(t, w.watch(w.cluster.Revision()).run().Run(w.ctx()), etcd.ErrSilent)
		require.Equal(t, w.Freshness, time.Since(began))
		w.link.OnRequest(nil)
	})
}

func TestIdleClusterStaysConnected(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *bubbled) {
		for range 1000 {
			pass(w.Freshness / 3)
			w.status(true)
		}
		w.failures()
	})
}

func TestRunEndsAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault memetcd.Faults
		after time.Duration
	}{
		"connected":           {},
		"black hole":          {memetcd.Unreachable(), seconds},
		"black hole, stalled": {memetcd.Unreachable(), time.Minute},
		"down":                {memetcd.Faults{Refuse: true}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *bubbled) {
				w.link.Set(c.fault)
				pass(c.after)
				began := time.Now()
				require.NoError(t, w.stop())
				require.Zero(t, time.Since(began))
				require.False(t, w.Status().Connected)
				w.link.Set(memetcd.Faults{})
			})
		})
	}
}

// Of real etcd: a connection that carries nothing is noticed by the watch, and does not keep Run from
// its end.
func TestAHangingWatchOfEtcdIsStalled(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	p := cluster.Proxy(0)
	s := newScanner(t, client(t, p.Addr()), func(o *Options) { o.Freshness = 2 * time.Second })
	stop := background(t, s.Run)
	etcdtest.Eventually(t, func() bool { return s.Status().Connected })
	p.Blackhole()
	etcdtest.Eventually(t, func() bool { return s.Status().Restarts[etcd.Stalled] > 0 })
	require.NoError(t, stop())
}

// guarded returns an etcd with authentication and a user "unlocker" without rights.
func guarded(t *testing.T, o localetcd.Options) *world {
	t.Helper()
	w := &world{t: t, etcd: etcdtest.Start(t, o)}
	w.etcd.Guard("unlocker", "pw")
	return w
}

func (w *world) grant() {
	w.t.Helper()
	_, err := w.etcd.Client.RoleGrantPermission(w.ctx(), "unlocker", layout.Prefix(), layout.End(),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(w.t, err)
}

func (w *world) runAsUnlocker(edits ...func(*Options)) {
	w.Scanner = newScanner(w.t, w.etcd.Connect(func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }), edits...)
	background(w.t, w.Run)
}

func TestPermissionDeniedThenGranted(t *testing.T) {
	t.Parallel()
	w := guarded(t, localetcd.Options{})
	w.runAsUnlocker(often)
	w.restarted(etcd.PermissionDenied)
	require.Zero(t, w.Status().Listed)
	w.grant()
	w.connected()
	w.acquire("a")
	w.inLine()
}

// A simple token that expires must not stop the watch for long.
func TestAuthTokenExpires(t *testing.T) {
	t.Parallel()
	w := guarded(t, localetcd.Options{AuthTokenTTL: time.Second})
	w.grant()
	w.runAsUnlocker()
	w.connected()
	began := time.Now()
	w.eventually(func() bool { return time.Since(began) > 3*time.Second }, "three lives of a token")
	w.acquire("a")
	w.inLine()
	w.etcd.Kill(0) // a new stream is needed, and the token is gone with the server
	require.NoError(t, w.etcd.Restart(w.ctx()))
	w.connected()
	w.acquire("b")
	w.inLine()
}

func TestPermissionRevokedWhileWatching(t *testing.T) {
	t.Parallel()
	w := guarded(t, localetcd.Options{})
	w.grant()
	w.runAsUnlocker(often)
	w.connected()
	_, err := w.etcd.Client.RoleRevokePermission(w.ctx(), "unlocker", layout.Prefix(), layout.End())
	require.NoError(t, err)
	w.eventually(func() bool {
		r := w.Status().Restarts
		return r[etcd.PermissionDenied]+r[etcd.Auth] > 0
	}, "noticed, by the next resync at the latest")
	w.grant()
	w.connected()
	w.acquire("a")
	w.inLine()
}
