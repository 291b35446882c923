package records

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func newWriter(t *testing.T, endpoints ...string) *Writer {
	t.Helper()
	c := config.Default()
	c.Etcd.Endpoints = endpoints
	client, err := etcd.New(etcd.Options{Etcd: c.Etcd})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return &Writer{Config: c, Client: client, Full: func() bool { return false }}
}

// Large records take several transactions; a record that is there stays as it is.
func TestWriterWritesEachRecordOnce(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	w := newWriter(t, e.Endpoints()...)
	removed := make([]api.Forced, 120)
	for i := range removed {
		removed[i] = api.Forced{
			At: time.Unix(1, 0), Name: fmt.Sprint(strings.Repeat("n", 500), i), Token: 7, Trigger: verdict.Expiry, Revision: 1,
			Fields: []api.Field{{Name: "x", Value: strings.Repeat("x", 4000)}, {Name: "y", Value: strings.Repeat("y", 3000)}},
		}
	}
	for i := range 2 {
		written, _, err := w.Write(t.Context(), removed)
		require.NoError(t, err)
		require.Len(t, removed, written)
		resp, err := e.Client.Get(t.Context(), w.Config.AuditKeys(), clientv3.WithPrefix(), clientv3.WithLimit(1))
		require.NoError(t, err)
		require.EqualValues(t, len(removed), resp.Count)
		_, r, err := Parse(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
		require.NoError(t, err)
		require.Equal(t, []any{removed[0].Name, time.Unix(1, 0).UTC(), int64(1)}, []any{r.Name, r.At, resp.Kvs[0].Version}, i)
	}
}

// A replica with a slow clock takes a removal for a release, and may say so first: its record keeps no other out.
func TestS7_TheRecordOfAReleaseIsNotInTheWayOfThatOfTheRemoval(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	w := newWriter(t, e.Endpoints()...)
	e.Put(clientv3.OpPut("/elsewhere", ""), clientv3.OpPut("/elsewhere/2", ""))
	for _, trigger := range []verdict.Trigger{verdict.Ended, verdict.Expiry} {
		_, _, err := w.Write(t.Context(), []api.Forced{{At: time.Now(), Name: "job", Token: 2, Revision: 2, Trigger: trigger}})
		require.NoError(t, err)
	}
	resp, err := e.Client.Get(t.Context(), protocol.RecordKey(w.Config.AuditKeys(), "job", 2))
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	_, r, err := Parse(resp.Kvs[0].Value, resp.Kvs[0].ModRevision)
	require.NoError(t, err)
	require.Equal(t, verdict.Expiry, r.Trigger)
	of, err := e.Client.Get(t.Context(), protocol.RecordsOf(w.Config.AuditKeys(), "job"), clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, of.Kvs, 2, "of the range of its name both are")
}

func TestWriterSaysWhatToTryLater(t *testing.T) {
	t.Parallel()
	w := newWriter(t, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	written, later, err := w.Write(ctx, []api.Forced{{Name: "a", Trigger: verdict.Expiry, Revision: 1}})
	require.Error(t, err)
	require.True(t, later)
	require.Zero(t, written)
	w.Full = func() bool { return true }
	_, later, err = w.Write(ctx, []api.Forced{{Name: "a"}})
	require.ErrorIs(t, err, ErrFull)
	require.False(t, later)
}
