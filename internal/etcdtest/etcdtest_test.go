package etcdtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) { etcdtest.Main(m, shared.Close) }

func value(t *testing.T, e *etcdtest.Etcd, key string) string {
	t.Helper()
	resp, err := e.Client.Get(t.Context(), e.Prefix+key)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1, key)
	return string(resp.Kvs[0].Value)
}

func TestLocks(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	start, unlock := time.Now().Truncate(time.Millisecond), time.Unix(1_700_000_000, 5e8)
	e.Put(append(e.Lock("a", unlock, unlock, "owner", "shop", "ticket", "1"), e.Lock("b", unlock, unlock)...)...)
	require.Equal(t, []string{"a/alert_at", "a/auto_unlock_at", "a/hostname", "a/locked_at", "a/owner", "a/ticket", "a/uuid"}, e.Keys("a/"))
	require.Len(t, e.Keys(""), 13)
	require.Equal(t, "u-a", value(t, e, "a/uuid"))
	require.Equal(t, "shop", value(t, e, "a/owner"))
	require.Equal(t, "billing", value(t, e, "b/owner"))
	require.Equal(t, "1700000000.500", value(t, e, "a/auto_unlock_at"))
	require.GreaterOrEqual(t, value(t, e, "a/locked_at"), etcdtest.Stamp(start))

	e.Renew("a", unlock, unlock.Add(time.Second))
	require.Equal(t, "1700000001.500", value(t, e, "a/auto_unlock_at"))
	require.Equal(t, "1700000000.500", value(t, e, "a/alive_at"))
	revision := e.Set("c", "uuid", "u", "x", "")
	require.Equal(t, []string{"c/uuid", "c/x"}, e.Keys("c/"))
	require.Greater(t, e.Set("c", "x", "y"), revision)
}

func TestPutOfMany(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	var ops []clientv3.Op
	for i := range 1000 {
		ops = append(ops, clientv3.OpPut(e.Prefix+etcdtest.Stamp(time.Unix(int64(i), 0)), ""))
	}
	revision := e.Put(ops...)
	require.Len(t, e.Keys(""), 1000)
	resp, err := e.Client.Get(t.Context(), e.Prefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend))
	require.NoError(t, err)
	require.Equal(t, resp.Kvs[0].ModRevision, revision)
}

func TestSharedEtcdHasAPrefixForEachTest(t *testing.T) {
	t.Parallel()
	a, b := shared.Start(t), shared.Start(t)
	a.Set("a", "uuid", "u")
	require.Empty(t, b.Keys(""))
	require.Equal(t, a.Endpoints(), b.Endpoints())
	require.Empty(t, etcdtest.On(t, a.Client).Keys(""))
}

func TestFillAndFree(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	free := e.Fill()
	_, err := e.Client.Put(t.Context(), "k", "v")
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	free()
	_, err = e.Client.Put(t.Context(), "k", "v")
	require.NoError(t, err)
}

func TestGuard(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Guard("ada", "secret", "/a/", "/b/")
	ada := e.Connect(func(c *clientv3.Config) { c.Username, c.Password = "ada", "secret" })
	for key, want := range map[string]error{"/a/k": nil, "/b/k": nil, "/c/k": rpctypes.ErrPermissionDenied} {
		_, err := ada.Put(t.Context(), key, "v")
		require.ErrorIs(t, err, want)
		_, err = e.Client.Put(t.Context(), key, "v")
		require.NoError(t, err, "root has all permissions")
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	var log etcdtest.Log
	_, err := log.Write([]byte("panic: not JSON\n{\"msg\":\"half a line\""))
	require.NoError(t, err)
	require.Empty(t, log.Lines(""))
	_, err = log.Write([]byte(",\"n\":1}\n"))
	require.NoError(t, err)
	log.Logger().Debug("whole", "n", 2)
	require.Len(t, log.Lines(""), 2)
	require.Equal(t, []map[string]any{{"msg": "half a line", "n": 1.0}}, log.Lines("half a line"))
	require.Equal(t, 2.0, log.Lines("whole")[0]["n"])
	require.Contains(t, log.String(), "not JSON")
}

func TestMetric(t *testing.T) {
	t.Parallel()
	const text = "# TYPE g gauge\ng{a=\"x\",b=\"1\"} 2\ng{a=\"x\",b=\"2\"} 3\ng{a=\"y\",b=\"2\"} 4\n" +
		"# TYPE h histogram\nh_bucket{le=\"1\"} 4\nh_bucket{le=\"+Inf\"} 6\nh_sum 9\nh_count 6\n"
	require.Equal(t, 9.0, etcdtest.Metric(t, text, "g"))
	require.Equal(t, 5.0, etcdtest.Metric(t, text, "g", "a", "x"))
	require.Equal(t, 4.0, etcdtest.Metric(t, text, "g", "a", "y", "b", "2"))
	require.Equal(t, 6.0, etcdtest.Metric(t, text, "h"))
	require.Zero(t, etcdtest.Metric(t, text, "absent"))
}
