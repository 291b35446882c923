package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/pause"
)

// sized notes the largest answer.
type sized struct {
	clientv3.KV
	largest *int
}

func (s sized) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := s.KV.Get(ctx, key, opts...)
	if err == nil {
		*s.largest = max(*s.largest, len(resp.Kvs))
	}
	return resp, err
}

// Many records, and large ones that any client may have written, are read a few at a time.
func TestPausesAreReadInPages(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	a := openAt(t, e)
	root := a.config.PauseKeys()
	const n = 2*etcd.SmallPage + 1
	for i := range n {
		r := api.Pause{Match: fmt.Sprintf("a/%02d", i), By: "ada@host", Reason: "r", Until: time.Now().Add(time.Hour)}
		value, err := pause.Value(r)
		require.NoError(t, err)
		e.Put(clientv3.OpPut(root+pause.Key(r.Match), value))
		e.Put(clientv3.OpPut(root+pause.Key(r.Match)+"/large", strings.Repeat("x", 1<<20)))
	}
	var largest int
	a.client.KV = sized{a.client.KV, &largest}
	ended, left, err := a.Resume(t.Context(), "a/00", false)
	require.NoError(t, err)
	require.Equal(t, "a/00", ended.Match)
	require.Len(t, left, n-1+n)
	require.Equal(t, api.Pause{Reason: "the record /unlocker/pause/mutexes/match/a/00/large cannot be read"}, left[0])
	require.Equal(t, "a/01", left[1].Match)
	require.Equal(t, etcd.SmallPage, largest)
	for i := range pause.MaxRecords {
		e.Put(clientv3.OpPut(fmt.Sprintf("%sz%04d", root, i), "x"))
	}
	left, err = a.Pauses(t.Context())
	require.NoError(t, err)
	require.InDelta(t, pause.MaxRecords, len(left), etcd.SmallPage)
}
