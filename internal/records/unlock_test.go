package records

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// The lock changes hands right before the transaction: the next holder keeps it, and neither a record
// nor its lease stays.
func TestUnlockThatLosesLeavesNothing(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	c := config.Default()
	c.Etcd.Endpoints, c.Etcd.RequestTimeout = e.Endpoints(), etcdtest.Soon
	client, err := etcd.New(etcd.Options{Etcd: c.Etcd})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	layout, err := protocol.NewLayout(c.Prefix)
	require.NoError(t, err)
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("a", later, later)...)
	u := NewUnlocker(c, client, lockstore.Store{KV: client.KV, Layout: layout, RequestTimeout: c.Etcd.RequestTimeout})
	u.Now = func() time.Time { // as the record is made
		leases, err := e.Client.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases.Leases, 1)
		e.Put(clientv3.OpPut("/mutexes/a/uuid", "next"))
		return time.Now()
	}
	_, now, err := u.Unlock(t.Context(), "a", api.Unlock{UUID: "u-a"}, "ada@host", true)
	require.ErrorIs(t, err, lockstore.ErrOtherUUID)
	require.Equal(t, "next", now.UUID())
	require.Len(t, e.Keys(""), 6)
	records, err := e.Client.Get(t.Context(), c.AuditKeys(), clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, records.Kvs)
	leases, err := e.Client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}
