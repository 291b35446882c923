package lockstore

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestS5_RemovalsWorkAtFullQuota(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	h := newHarnessOn(t, client, client)
	var batch []string
	for i := range 16 {
		batch = append(batch, fmt.Sprintf("n%02d", i))
	}
	h.expired(append(batch, "alone", "a", "a/b", "big", "kept")...)
	h.set("orphan", "alert_at", past)
	h.set("big", "backtrace", strings.Repeat("x", 64<<10))
	h.fill()
	alarms, err := client.AlarmList(h.ctx)
	require.NoError(t, err)
	require.Equal(t, etcdserverpb.AlarmType_NOSPACE, alarms.Alarms[0].Alarm)

	h.remove(batch...)
	h.remove("alone")
	h.remove("a", "big", "orphan")
	require.Len(t, h.keys(), 10)
}

func TestS5_NoPutInAnyBranch(t *testing.T) {
	h := newHarness(t)
	h.expired("alone", "b1", "b2", "nested", "nested/a", "big", "manual")
	h.set("big", "backtrace", strings.Repeat("x", 64<<10))
	h.set("orphan", "alert_at", past)
	h.remove("alone")
	h.remove("b1", "b2", "nested", "big", "orphan")
	_, _, err := h.Unlock(h.ctx, "manual", Held{UUID: "u-manual"}, nil)
	require.NoError(t, err)
	require.Len(t, h.sent, 3)
	for _, txn := range h.sent {
		requireOnlyDeletes(t, txn)
	}

	h.expired("traced")
	var removed Record
	_, _, err = h.Unlock(h.ctx, "traced", Held{UUID: "u-traced"}, func(_ context.Context, r Record) (clientv3.Op, error) {
		removed = r
		return clientv3.OpPut("/elsewhere", "why"), nil
	})
	require.NoError(t, err)
	require.Equal(t, "u-traced", removed.UUID())
	txn := h.sent[3]
	last := len(txn.Success) - 1
	require.Equal(t, "/elsewhere", string(txn.Success[last].GetRequestPut().Key), "a trace is all that a manual unlock writes")
	txn.Success = txn.Success[:last]
	requireOnlyDeletes(t, txn)
}

func requireOnlyDeletes(t *testing.T, txn *etcdserverpb.TxnRequest) {
	t.Helper()
	require.NotEmpty(t, txn.Success)
	require.Empty(t, txn.Failure)
	for _, op := range txn.Success {
		if nested := op.GetRequestTxn(); nested != nil {
			require.GreaterOrEqual(t, len(nested.Compare), 2)
			requireOnlyDeletes(t, nested)
			continue
		}
		require.NotNil(t, op.GetRequestDeleteRange())
	}
}
