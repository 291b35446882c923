package sim

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func asUser(cfg *clientv3.Config) { cfg.Username, cfg.Password = "user", password }

// TestMemoryAuthIsAsEtcd compares what a user sees whose role covers "a/", and whose token ends.
func TestMemoryAuthIsAsEtcd(t *testing.T) {
	etcd := etcdtest.Start(t, localetcd.Options{}).Cluster
	root := enableAuth(t, etcd)
	cli, err := etcd.Client(asUser)
	require.NoError(t, err)
	truth := &recording{t: t, ctx: t.Context(), cli: cli, base: 1}
	playAuth(truth, func() {
		_, err := root.UserChangePassword(t.Context(), "user", password) // ends all tokens of the user
		require.NoError(t, err)
	})
	synctest.Test(t, func(t *testing.T) {
		c := memetcd.New(memetcd.Options{})
		link, err := c.Connect(asUser)
		require.NoError(t, err)
		link.Allow("a/", clientv3.GetPrefixRangeEnd("a/"))
		mem := &recording{t: t, ctx: t.Context(), cli: link.Client, base: 1}
		playAuth(mem, c.ExpireTokens)
		closeAtRest(t, c)
		require.Equal(t, strings.Join(truth.seen, "\n"), strings.Join(mem.seen, "\n"))
	})
}

func enableAuth(t *testing.T, etcd *localetcd.Cluster) *clientv3.Client {
	open, err := etcd.Client()
	require.NoError(t, err)
	ctx := t.Context()
	require.NoError(t, addUsers(ctx, open, "root", "user"))
	_, err = open.RoleGrantPermission(ctx, "user", "a/", clientv3.GetPrefixRangeEnd("a/"), clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	_, err = open.AuthEnable(ctx)
	require.NoError(t, err)
	root, err := etcd.Client(asRoot)
	require.NoError(t, err)
	return root
}

func playAuth(r *recording, expire func()) {
	r.puts("a/b=1", "b=1")
	r.get("a/", clientv3.WithPrefix())
	r.get("a/", clientv3.WithKeysOnly())
	r.get("a")
	r.get("a/", clientv3.WithFromKey())
	r.list("a/", clientv3.WithPrefix())
	r.list("b")
	r.delete("a/b", clientv3.WithRange("b"))
	r.txn(cmps{clientv3.Compare(clientv3.Version("b"), "=", 0)}, nil, nil)
	r.txn(cmps{clientv3.Compare(clientv3.Version("a/b"), "=", 0).WithPrefix()}, ops{clientv3.OpPut("a/c", "1")}, ops{clientv3.OpGet("a/b")})
	r.txn(nil, ops{clientv3.OpTxn(nil, nil, ops{clientv3.OpPut("b", "1")})}, nil)
	r.compact(2)
	r.grant(1, 60)
	r.keepAlive(1)
	alarms, err := r.cli.AlarmList(r.ctx)
	require.NoError(r.t, err)
	require.Empty(r.t, alarms.Alarms)
	denied := r.watch("denied", "b")
	denied.expect(2)
	first := r.watch("first", "a/", clientv3.WithPrefix(), clientv3.WithRev(2))
	first.expect(1)

	expire()
	r.puts("a/b=2")
	first.expect(1)
	r.list("a/", clientv3.WithPrefix())
	second := &watching{recording: r, name: "second", watch: first.watch, ctx: first.ctx, cancel: first.cancel, watchC: first.watch.Watch(first.ctx, "a/b")}
	second.expect(2)
	first.close()
	r.revoke(1)
}
