package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// oldKV is an etcd before 3.7.
type oldKV struct {
	clientv3.KV
	limits []int64
}

func (o *oldKV) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return nil, status.Error(codes.Unimplemented, "unknown method RangeStream")
}

func (o *oldKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, opts...)
	o.limits = append(o.limits, op.Limit())
	return o.KV.Get(ctx, key, opts...)
}

// listed lists by kv.
func listed(t testing.TB, kv clientv3.KV, rev int64) (locks []protocol.Lock, keys int) {
	t.Helper()
	l := lister{kv: kv, layout: layout, timeout: etcdtest.Soon, emit: func(batch []protocol.Lock) error {
		locks = append(locks, batch...)
		return nil
	}}
	keys, err := l.run(t.Context(), rev)
	require.NoError(t, err)
	newest := slices.MaxFunc(locks, func(a, b protocol.Lock) int { return cmp.Compare(a.Revision, b.Revision) })
	require.Equal(t, newest.Revision, l.newest.ModRevision)
	slices.SortFunc(locks, func(a, b protocol.Lock) int { return strings.Compare(a.Name, b.Name) })
	return locks, keys
}

func TestStreamAndPagesGiveTheSameLocks(t *testing.T) {
	t.Parallel()
	w := idle(t)
	for i := range 600 {
		w.acquire(fmt.Sprintf("many/%d", i))
	}
	w.acquire("a", "a/b", "a/b/c", "a-x", "a/z", "ключ")
	for _, key := range []string{"", "x", "/uuid", "a//uuid", "a/", "\xff/uuid", "zz/unknown"} {
		_, err := w.etcd.Client.Put(t.Context(), "/mutexes/"+key, "v")
		require.NoError(t, err)
	}
	resp, err := w.etcd.Client.Put(t.Context(), layout.Key("ключ", "backtrace"), strings.Repeat("x", 1<<20))
	require.NoError(t, err)
	rev := resp.Header.Revision
	w.acquire("later") // not to be seen

	stream, n := listed(t, w.etcd.Client.KV, rev)
	old := &oldKV{KV: w.etcd.Client.KV}
	pages, m := listed(t, old, rev)
	require.Equal(t, 606*6+7+1, n)
	require.Equal(t, n, m)
	require.Len(t, stream, 606+7)
	require.Equal(t, stream, pages)
	require.Equal(t, []int64{16, 128, 1024, 8192}, old.limits)
	require.True(t, stream[slices.IndexFunc(stream, func(l protocol.Lock) bool { return l.Name == "ключ" })].Large())
}

// TestLocksOfAllMixturesOfKeys compares the lister with grouping by Split.
func TestLocksOfAllMixturesOfKeys(t *testing.T) {
	t.Parallel()
	segment := rapid.SampledFrom([]string{"", "a", "b", "a-", "a0", "uuid", "hostname", "x", "\xff"})
	rapid.Check(t, func(t *rapid.T) {
		keys := make(map[string]*mvccpb.KeyValue)
		for rev := range rapid.IntRange(0, 40).Draw(t, "keys") {
			key := layout.Prefix() + strings.Join(rapid.SliceOfN(segment, 0, 5).Draw(t, "segments"), "/")
			r := int64(rev + 1)
			keys[key] = &mvccpb.KeyValue{Key: []byte(key), Value: []byte("v"), CreateRevision: r, ModRevision: r}
		}
		var got []protocol.Lock
		l := lister{layout: layout, emit: func(batch []protocol.Lock) error {
			got = append(got, batch...)
			return nil
		}}
		want := make(map[string]*protocol.Builder)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			kv := keys[key]
			require.NoError(t, l.add([]*mvccpb.KeyValue{kv}))
			name, field, valid := layout.Split(kv.Key)
			if want[string(name)] == nil {
				want[string(name)] = &protocol.Builder{}
			}
			k := protocol.KV{Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease}
			if valid {
				k.Field = protocol.ParseField(field)
			}
			want[string(name)].Add(k)
		}
		require.NoError(t, l.closeUntil(""))
		require.NoError(t, l.flush())
		require.Equal(t, len(keys), l.keys)
		require.Empty(t, l.open)
		require.Len(t, got, len(want))
		for _, g := range got {
			require.Contains(t, want, g.Name)
			require.Equal(t, want[g.Name].Lock(g.Name), g)
		}
	})
}

func TestStalledStreamEndsByTimeout(t *testing.T) {
	t.Parallel()
	w := idle(t)
	w.acquire("a")
	p := w.etcd.Proxy(0)
	c := client(t, p.Addr())
	_, err := c.Get(t.Context(), "k")
	require.NoError(t, err)
	p.Blackhole()
	for name, kv := range map[string]clientv3.KV{"stream": c.KV, "pages": &oldKV{KV: c.KV}} {
		began := time.Now()
		l := lister{kv: kv, layout: layout, timeout: 200 * time.Millisecond}
		_, err := l.run(t.Context(), 0)
		require.Equal(t, etcd.Timeout, classify(err), name)
		require.Less(t, time.Since(began), 10*time.Second, name)
	}
	require.NoError(t, p.Heal())
}

func TestFailingTableEndsTheListing(t *testing.T) {
	t.Parallel()
	w := idle(t)
	full := fmt.Errorf("no more")
	for i := range batchLocks + 1 {
		w.acquire(fmt.Sprint(i))
		if i < batchLocks-1 {
			continue
		}
		l := lister{kv: w.etcd.Client.KV, layout: layout, timeout: etcdtest.Soon, emit: func([]protocol.Lock) error { return full }}
		_, err := l.run(t.Context(), 0)
		require.ErrorIs(t, err, full, i)
	}
}

// The last batch ends between two locks of which the one has the name of the other below it.
func TestABatchEndsBetweenNestedLocks(t *testing.T) {
	t.Parallel()
	w := idle(t)
	for i := range batchLocks - 1 {
		w.acquire(fmt.Sprint(i))
	}
	w.acquire("a", "a/z")
	locks, _ := listed(t, w.etcd.Client.KV, 0)
	require.Len(t, locks, batchLocks+1)
}

// slowKV is an etcd whose answer to a listing comes in parts, each after a while, until the context of the request ends.
type slowKV struct {
	clientv3.KV
	parts int
	after time.Duration
}

func (s slowKV) GetStream(ctx context.Context, _ string, _ ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	chunks := make(chan clientv3.RangeStreamResponse)
	go func() {
		defer close(chunks)
		for i := range s.parts {
			pass(s.after)
			if ctx.Err() != nil {
				return
			}
			key := layout.Key(fmt.Sprintf("%09d", i), "uuid")
			chunks <- clientv3.RangeStreamResponse{RangeResponse: &etcdserverpb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte(key), ModRevision: 1}}}}
		}
	}()
	return chunks, nil
}

// The timeout is for each part of an answer.
func TestALongListingOfManyPartsDoesNotTimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		locks, keys := listed(t, slowKV{parts: 10, after: etcdtest.Soon * 3 / 4}, 0)
		require.Len(t, locks, 10)
		require.Equal(t, 10, keys)
	})
}

// A listing that ends before its answer does ends the request, and leaves no goroutine of etcd's client behind.
func TestAListingThatEndsEarlyEndsItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("no more")
		l := lister{kv: slowKV{parts: 1_000_000, after: time.Second}, layout: layout, timeout: time.Minute, emit: func([]protocol.Lock) error { return full }}
		began := time.Now()
		_, err := l.run(t.Context(), 0)
		require.ErrorIs(t, err, full)
		require.LessOrEqual(t, time.Since(began), (batchLocks+2)*time.Second)
	})
}
