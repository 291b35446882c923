package admin

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

// An unlock without an answer may have been executed: its record must stay then.
func TestAmbiguousUnlockKeepsItsRecord(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	p := e.Proxy(0)
	c := config.Default()
	c.Etcd.Endpoints, c.Etcd.RequestTimeout = []string{p.Addr()}, etcdtest.Soon
	a, err := Open(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("a", later, later)...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	removed := e.Client.Watch(ctx, "/mutexes/a/uuid", clientv3.WithFilterPut())
	go func() {
		<-removed
		cancel()
	}()
	confirmed := false
	a.manual.Now = func() time.Time {
		if confirmed { // the record is made, right before the transaction
			p.HoldReplies()
		}
		return time.Now()
	}
	_, err = a.Unlock(ctx, "a", "u-a", "why", func(Detail, error) error {
		confirmed = true
		return nil
	})
	require.ErrorIs(t, err, lockstore.ErrAmbiguous)
	require.NoError(t, p.Heal())
	require.Empty(t, e.Keys(""))
	resp, err := e.Client.Get(t.Context(), "/unlocker/audit/mutexes/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
}
