package scan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// as logs a client in.
func as(user string) func(*clientv3.Config) {
	return func(c *clientv3.Config) { c.Username, c.Password = user, "pw" }
}

// guarded returns an etcd with authentication, a root client and a user
// "unlocker" without rights.
func guarded(t *testing.T, o localetcd.Options) *world {
	t.Helper()
	cluster := localetcd.ForTest(t, o)
	w := &world{t: t, cluster: cluster}
	plain := client(t, cluster.Addr(0))
	for _, user := range []string{"root", "unlocker"} {
		_, err := plain.RoleAdd(w.ctx(), user)
		require.NoError(t, err)
		_, err = plain.UserAdd(w.ctx(), user, "pw")
		require.NoError(t, err)
		_, err = plain.UserGrantRole(w.ctx(), user, user)
		require.NoError(t, err)
	}
	_, err := plain.AuthEnable(w.ctx())
	require.NoError(t, err)
	w.direct = client(t, cluster.Addr(0), as("root"))
	return w
}

func (w *world) grant() {
	w.t.Helper()
	_, err := w.direct.RoleGrantPermission(w.ctx(), "unlocker", layout.Prefix(), layout.End(),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(w.t, err)
}

func (w *world) runAs(user string) {
	w.Scanner = newScanner(w.t, client(w.t, w.cluster.Addr(0), as(user)), often)
	background(w.t, w.Run)
}

func TestPermissionDeniedThenGranted(t *testing.T) {
	w := guarded(t, localetcd.Options{})
	w.runAs("unlocker")
	w.restarted(ReasonPermission)
	require.Zero(t, w.Status().Listed)
	w.grant()
	w.connected()
	w.acquire("a")
	w.inLine()
}

// A simple token that expires must not end the sight of locks for long.
func TestAuthTokenExpires(t *testing.T) {
	w := guarded(t, localetcd.Options{AuthTokenTTL: time.Second})
	w.grant()
	w.Scanner = newScanner(t, client(t, w.cluster.Addr(0), as("unlocker")))
	background(t, w.Run)
	w.connected()
	began := time.Now()
	w.eventually(func() bool { return time.Since(began) > 3*time.Second }, "three lives of a token")
	w.acquire("a")
	w.inLine()
	w.cluster.Kill(0) // a new stream is needed, and the token is gone with the server
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.connected()
	w.acquire("b")
	w.inLine()
}

func TestPermissionRevokedWhileWatching(t *testing.T) {
	w := guarded(t, localetcd.Options{})
	w.grant()
	w.runAs("unlocker")
	w.connected()
	_, err := w.direct.RoleRevokePermission(w.ctx(), "unlocker", layout.Prefix(), layout.End())
	require.NoError(t, err)
	w.eventually(func() bool {
		r := w.Status().Restarts
		return r[ReasonPermission]+r[ReasonAuth] > 0
	}, "noticed, by the next resync at the latest")
	w.grant()
	w.connected()
	w.acquire("a")
	w.inLine()
}
