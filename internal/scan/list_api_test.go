package scan

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// listAll lists as a command does.
func listAll(ctx context.Context, kv clientv3.KV, timeout time.Duration) (locks []protocol.Lock, parts int, revision int64, err error) {
	revision, err = List(ctx, kv, layout, timeout, func(part []protocol.Lock) error {
		locks = append(locks, part...)
		parts++
		return nil
	})
	return locks, parts, revision, err
}

func TestListGivesAllLocksAtOneRevision(t *testing.T) {
	t.Parallel()
	w := idle(t)
	none, parts, revision, err := listAll(t.Context(), w.etcd.Client.KV, etcdtest.Soon)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Zero(t, parts)
	require.EqualValues(t, 1, revision)

	for i := range batchLocks + 88 {
		w.acquire(fmt.Sprintf("many/%04d", i))
	}
	w.acquire("a", "a/b")
	resp, err := w.etcd.Client.Put(t.Context(), "/other", "x")
	require.NoError(t, err)
	for name, kv := range map[string]clientv3.KV{"stream": w.etcd.Client.KV, "pages": &oldKV{KV: w.etcd.Client.KV}} {
		t.Run(name, func(t *testing.T) {
			locks, parts, revision, err := listAll(t.Context(), kv, etcdtest.Soon)
			require.NoError(t, err)
			require.Len(t, locks, batchLocks+90)
			require.Equal(t, 2, parts)
			require.Equal(t, resp.Header.Revision, revision)
		})
	}
}

// What is written while the listing goes on is not in it.
func TestListDoesNotMixRevisions(t *testing.T) {
	t.Parallel()
	w := idle(t)
	for i := range 40 {
		w.acquire(fmt.Sprintf("many/%04d", i))
	}
	kv := &oldKV{KV: w.etcd.Client.KV}
	locks, _, revision, err := listAll(t.Context(), &meddler{KV: kv, meddle: func() { w.acquire("zz"); w.release("many/0039") }}, etcdtest.Soon)
	require.NoError(t, err)
	require.Greater(t, len(kv.limits), 2, "page by page")
	require.Len(t, locks, 40)
	require.Equal(t, "many/0039", locks[39].Name)
	require.Less(t, locks[39].Revision, revision+1)
}

// meddler changes something before each page but the first request.
type meddler struct {
	clientv3.KV
	meddle func()
	reads  int
}

func (m *meddler) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if m.reads++; m.reads > 1 {
		m.meddle()
	}
	return m.KV.Get(ctx, key, opts...)
}

func TestListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster := single(t)
	p := cluster.Proxy(0)
	c := client(t, p.Addr())
	_, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	p.Blackhole()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	_, _, _, err = listAll(ctx, c.KV, etcdtest.Soon)
	require.Error(t, err)
	require.Error(t, ctx.Err())
	_, _, _, err = listAll(t.Context(), c.KV, 200*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), etcdtest.Soon/2)
	require.NoError(t, p.Heal())
}

func TestListEndsWhenEmitFails(t *testing.T) {
	t.Parallel()
	w := idle(t)
	w.acquire("a")
	enough := errors.New("enough")
	_, err := List(t.Context(), w.etcd.Client.KV, layout, etcdtest.Soon, func([]protocol.Lock) error { return enough })
	require.ErrorIs(t, err, enough)
}
