package admin

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// broken is a connection that breaks after each write.
type broken struct{ clientv3.KV }

var errBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

func (b broken) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	if _, err := b.KV.Put(ctx, key, value, opts...); err != nil {
		return nil, err
	}
	return nil, errBroken
}

func (b broken) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	if _, err := b.KV.Delete(ctx, key, opts...); err != nil {
		return nil, err
	}
	return nil, errBroken
}

func openAt(t *testing.T, e *etcdtest.Etcd) *Admin {
	c := config.Default()
	c.Etcd.Endpoints, c.Etcd.RequestTimeout = e.Endpoints(), etcdtest.Soon
	a, err := Open(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// A pause that replaces an earlier one stays, since that one is gone.
func TestAPauseWhoseAnswerIsLostLasts(t *testing.T) {
	t.Parallel()
	a := openAt(t, etcdtest.Start(t, localetcd.Options{}))
	_, err := a.Pause(t.Context(), Who(), "", time.Hour, "maintenance")
	require.NoError(t, err)
	a.client.KV = broken{a.client.KV}
	_, err = a.Pause(t.Context(), Who(), "", 2*time.Hour, "longer")
	require.ErrorContains(t, err, "it may be paused or not: repeat the command")
	list, err := a.Pauses(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, _, err = a.Resume(t.Context(), "", true)
	require.ErrorContains(t, err, "it may be resumed or not: repeat the command")
}
