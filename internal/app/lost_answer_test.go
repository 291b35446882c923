package app

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/web"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// broken is a connection that breaks after each transaction that writes.
type broken struct{ clientv3.KV }

func (b broken) Txn(ctx context.Context) clientv3.Txn { return brokenTxn{b.KV.Txn(ctx)} }

type brokenTxn struct{ clientv3.Txn }

func (t brokenTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return brokenTxn{t.Txn.If(cs...)} }

func (t brokenTxn) Then(ops ...clientv3.Op) clientv3.Txn { return brokenTxn{t.Txn.Then(ops...)} }

func (t brokenTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err != nil {
		return nil, err
	}
	for _, r := range resp.Responses {
		if r.GetResponseDeleteRange() != nil {
			return nil, status.Error(codes.Unavailable, "error reading from server: EOF")
		}
	}
	return resp, err
}

// A connection that breaks says as little about the lock as a timeout.
func TestUnlockWhoseAnswerIsLostIsAmbiguous(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	c := config.Default()
	c.Etcd.Endpoints = e.Endpoints()
	client, err := etcd.New(etcd.Options{Etcd: c.Etcd})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	layout, err := protocol.NewLayout(c.Prefix)
	require.NoError(t, err)
	later := time.Now().Add(time.Hour)
	e.Put(e.Lock("a", later, later)...)
	store := lockstore.Store{KV: broken{client.KV}, Layout: layout, RequestTimeout: c.Etcd.RequestTimeout}
	u := unlocker{records.NewUnlocker(c, client, store), "host", nil, nil}
	_, err = u.Unlock(t.Context(), "a", api.Unlock{UUID: "u-a"}, "ada@host")
	var ambiguous *web.Error
	require.ErrorAs(t, err, &ambiguous)
	require.Equal(t, http.StatusGatewayTimeout, ambiguous.Status)
	require.Empty(t, e.Keys(""))
}
