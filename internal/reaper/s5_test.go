package reaper

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestS5_RemovalsWorkAtFullQuota(t *testing.T) {
	cluster := localetcd.ForTest(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	cli, err := cluster.Client()
	require.NoError(t, err)
	h := newHouse(t, cli)
	batch := names("n%02d", 16)
	h.expired(append(batch, "alone", "a", "a/b", "big", "kept")...)
	h.put("orphan", map[string]string{"alert_at": past.String()})
	h.put("big", map[string]string{"backtrace": string(make([]byte, 64<<10))})
	for err == nil { // the size is known with etcd's next commit, up to 100 ms later
		_, err = cli.Put(h.ctx, "/filler", string(make([]byte, 256<<10)))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	_, err = cli.Put(h.ctx, "/x", "")
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	alarms, err := cli.AlarmList(h.ctx)
	require.NoError(t, err)
	require.Equal(t, etcdserverpb.AlarmType_NOSPACE, alarms.Alarms[0].Alarm)

	h.remove(batch...)
	h.remove("alone")
	h.remove("a", "big", "orphan")
	require.Len(t, h.keys(), 10)
	require.Equal(t, 20, h.removed())
	require.Empty(t, h.failures())
}

func TestS5_NoPutInAnyBranch(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	h.expired("alone", "b1", "b2", "nested", "nested/a", "big")
	h.put("big", map[string]string{"backtrace": string(make([]byte, 64<<10))})
	h.put("orphan", map[string]string{"alert_at": past.String()})
	h.remove("alone")
	h.remove("b1", "b2", "nested", "big", "orphan")
	require.Len(t, h.kv.sent(), 2)
	for _, txn := range h.kv.sent() {
		require.NotEmpty(t, txn.then)
		requireOnlyDeletes(t, txn.then)
		require.Empty(t, txn.otherwise)
	}
}

func requireOnlyDeletes(t *testing.T, ops []clientv3.Op) {
	t.Helper()
	for _, op := range ops {
		require.False(t, op.IsPut() || op.IsGet())
		if op.IsTxn() {
			compares, then, otherwise := op.Txn()
			require.GreaterOrEqual(t, len(compares), 2)
			require.NotEmpty(t, then)
			requireOnlyDeletes(t, then)
			require.Empty(t, otherwise)
			continue
		}
		require.True(t, op.IsDelete())
	}
}
