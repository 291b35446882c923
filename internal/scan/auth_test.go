package scan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

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
