package follow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestAuthTokenExpires(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{AuthTokenTTL: time.Second})
	e.Guard("unlocker", "pw", e.Prefix)
	w := start(t, e, e.Connect(asUnlocker))
	w.inView(true)
	began := time.Now()
	etcdtest.Eventually(t, func() bool { return time.Since(began) > 3*time.Second }, "three lives of a token")
	w.put("a", "1")
	w.shows("+a=1")
	e.Kill(0) // a new stream is needed, and the token is gone with the server
	w.inView(false)
	require.NoError(t, e.Restart(t.Context()))
	w.inView(true)
	w.put("b", "1")
	w.shows("+a=1", "+b=1")
}

func asUnlocker(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }

func TestPermissionDeniedThenGranted(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Guard("unlocker", "pw")
	w := start(t, e, e.Connect(asUnlocker))
	etcdtest.Eventually(t, func() bool { return w.Status().Err != nil })
	require.ErrorContains(t, w.Status().Err, "permission denied")
	require.False(t, w.Status().InView)
	_, err := e.Client.RoleGrantPermission(t.Context(), "unlocker", e.Prefix, clientv3.GetPrefixRangeEnd(e.Prefix), clientv3.PermissionType(clientv3.PermRead))
	require.NoError(t, err)
	w.inView(true)
	w.put("a", "1")
	w.shows("+a=1")
	require.Len(t, warnings(w), 1, "a warning a minute")
}

func warnings(w *world) (lines []map[string]any) {
	for _, line := range w.log.Lines(api.LogNotInView) {
		if line["level"] == "WARN" {
			lines = append(lines, line)
		}
	}
	return lines
}
