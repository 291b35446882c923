package lockstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { etcdtest.Main(m, closeShared) }

// closeShared closes the etcd that most tests share before goleak looks.
func closeShared() error {
	if shared.cluster == nil {
		return nil
	}
	return shared.cluster.Close()
}

var shared struct {
	once    sync.Once
	cluster *localetcd.Cluster
	client  *clientv3.Client
	err     error
	tests   atomic.Int64
}

// soon is the deadline of what needs nothing but etcd.
const soon = time.Minute

// past is the deadline of all locks here, and before any clock that runs the tests.
var past = protocol.TimestampOf(time.Unix(1_700_000_000, 0)).String()

// harness is a store with locks of its own.
type harness struct {
	Store
	*spy
	t      *testing.T
	ctx    context.Context
	client *clientv3.Client
}

// newHarness is on the etcd that the tests share, which none may harm.
func newHarness(t *testing.T) *harness {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if shared.cluster, shared.err = localetcd.Start(ctx, localetcd.Options{UnsafeNoFsync: true}); shared.err == nil {
			shared.client, shared.err = shared.cluster.Client()
		}
	})
	require.NoError(t, shared.err)
	return newHarnessOn(t, shared.client, shared.client)
}

// newHarnessOn writes and looks through one client, and gives the store another.
func newHarnessOn(t *testing.T, direct, client *clientv3.Client) *harness {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	layout, err := protocol.NewLayout(fmt.Sprintf("/%s %d/", t.Name(), shared.tests.Add(1)))
	require.NoError(t, err)
	s := &spy{KVClient: clientv3.RetryKVClient(client)}
	return &harness{Store{KV: clientv3.NewKVFromKVClient(s, client), Layout: layout, RequestTimeout: soon}, s, t, ctx, direct}
}

// newEtcd returns an etcd of the test's own and a client of it.
func newEtcd(t *testing.T, o localetcd.Options) (*localetcd.Cluster, *clientv3.Client) {
	t.Helper()
	cluster := etcdtest.Start(t, o).Cluster
	client, err := cluster.Client()
	require.NoError(t, err)
	return cluster, client
}

// spy keeps the transactions that delete, and runs hooks before them and before those
// that read, the latter counted from 1.
type spy struct {
	etcdserverpb.KVClient
	connected  connected // since when transactions are sent on it
	before     func()
	beforeRead func(n int)
	// afterRead may fail a transaction that reads.
	afterRead func(*etcdserverpb.TxnRequest, *etcdserverpb.TxnResponse) error
	sent      []*etcdserverpb.TxnRequest
	reads     int
}

type connected struct{ began time.Time }

func (connected) AuthType() string { return "" }

func (c connected) Began() time.Time { return c.began }

func (s *spy) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if len(r.Success) == 0 || r.Success[0].GetRequestRange() == nil {
		if s.sent = append(s.sent, r); s.before != nil {
			s.before()
		}
		on := credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{AuthInfo: s.connected})
		if err := etcd.Departs(on); err != nil { // as connections do
			return nil, err
		}
	} else if s.reads++; s.beforeRead != nil {
		s.beforeRead(s.reads)
	}
	resp, err := s.KVClient.Txn(ctx, r, opts...)
	if err == nil && s.afterRead != nil && r.Success[0].GetRequestRange() != nil {
		err = s.afterRead(r, resp)
	}
	return resp, err
}

func (h *harness) commit(ops ...clientv3.Op) (revision int64) {
	h.t.Helper()
	for part := range slices.Chunk(ops, 100) {
		resp, err := h.client.Txn(h.ctx).Then(part...).Commit()
		require.NoError(h.t, err)
		revision = resp.Header.Revision
	}
	return revision
}

// set writes fields of a lock, given as name, value, name, value: in one transaction
// where they are few.
func (h *harness) set(name string, fields ...string) int64 {
	h.t.Helper()
	var ops []clientv3.Op
	for f := range slices.Chunk(fields, 2) {
		ops = append(ops, clientv3.OpPut(h.Layout.Key(name, f[0]), f[1]))
	}
	return h.commit(ops...)
}

// expired writes locks of five keys that are long due.
func (h *harness) expired(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.set(name, "uuid", "u-"+name, "hostname", "host", "locked_at", past, "auto_unlock_at", past, "purpose", "test")
	}
}

// crowd writes n keys of a value each, by a format of their names below the prefix.
func (h *harness) crowd(format string, n int) {
	h.t.Helper()
	ops := make([]clientv3.Op, n)
	for i := range ops {
		ops[i] = clientv3.OpPut(h.Layout.Prefix()+fmt.Sprintf(format, i), "x")
	}
	h.commit(ops...)
}

// native writes a key with a lease, as etcd's own mutexes do, directly under a name.
func (h *harness) native(name string) {
	h.t.Helper()
	lease, err := h.client.Grant(h.ctx, 600)
	require.NoError(h.t, err)
	h.commit(clientv3.OpPut(fmt.Sprintf("%s%s/%x", h.Layout.Prefix(), name, lease.ID), "", clientv3.WithLease(lease.ID)))
}

// release is what a client's unlock does: it deletes each of its own keys.
func (h *harness) release(name string) {
	h.t.Helper()
	ops := []clientv3.Op{clientv3.OpDelete(h.Layout.Key(name, "unknown"))}
	for f := protocol.FieldUnknown + 1; f <= protocol.FieldUUID; f++ {
		ops = append(ops, clientv3.OpDelete(h.Layout.Key(name, f.String())))
	}
	h.commit(ops...)
}

// listed is a lock as the table has it of a listing.
func (h *harness) listed(name string) protocol.Lock {
	h.t.Helper()
	from, end := h.Layout.Range(name)
	resp, err := h.client.Get(h.ctx, from, clientv3.WithRange(end))
	require.NoError(h.t, err)
	var b protocol.Builder
	for _, kv := range resp.Kvs {
		if n, f, _ := h.Layout.Split(kv.Key); string(n) == name {
			b.Add(protocol.KV{Field: protocol.ParseField(f), Value: kv.Value, Create: kv.CreateRevision, Mod: kv.ModRevision, Lease: kv.Lease})
		}
	}
	return b.Lock(name)
}

func (h *harness) read(names ...string) []Record {
	h.t.Helper()
	var locks []protocol.Lock
	for _, name := range names {
		locks = append(locks, h.listed(name))
	}
	records, err := h.Read(h.ctx, locks)
	require.NoError(h.t, err)
	for i := range records {
		if records[i].Unread() {
			records[i], err = h.readLarge(h.ctx, locks[i])
			require.NoError(h.t, err)
		}
	}
	return records
}

func always() bool { return true }

// deleted is how many keys Delete deleted of each record.
func (h *harness) deleted(records ...Record) (keys []int64) {
	h.t.Helper()
	require.True(h.t, Fits(records...))
	keys, _, err := h.Delete(h.ctx, Terms{Open: always}, records...)
	require.NoError(h.t, err)
	require.Len(h.t, keys, len(records))
	return keys
}

// remove removes locks in one transaction, and nothing but all of each.
func (h *harness) remove(names ...string) {
	h.t.Helper()
	records := h.read(names...)
	deleted := h.deleted(records...)
	for i, r := range records {
		require.EqualValues(h.t, r.Keys, deleted[i], r.LoggedName())
	}
}

func (h *harness) keys() []string {
	h.t.Helper()
	keys, _ := h.list()
	return keys
}

// list returns the keys below the prefix, without it, and those of them that carry a
// lease.
func (h *harness) list() (keys, leased []string) {
	h.t.Helper()
	resp, err := h.client.Get(h.ctx, h.Layout.Prefix(), clientv3.WithPrefix())
	require.NoError(h.t, err)
	keys = []string{}
	for _, kv := range resp.Kvs {
		key := string(kv.Key[len(h.Layout.Prefix()):])
		if keys = append(keys, key); kv.Lease != 0 {
			leased = append(leased, key)
		}
	}
	return keys, leased
}

// under returns the keys that lie directly under a name, and the others, which
// include those with a lease.
func (h *harness) under(name string) (own, others []string) {
	h.t.Helper()
	keys, leased := h.list()
	for _, k := range keys {
		if k[:strings.LastIndexByte(k, '/')] == name && !slices.Contains(leased, k) {
			own = append(own, k)
		} else {
			others = append(others, k)
		}
	}
	return own, others
}

// fill writes until etcd refuses to, for its quota.
func (h *harness) fill() {
	h.t.Helper()
	var err error
	for err == nil { // the size is known with etcd's next commit, up to 100 ms later
		_, err = h.client.Put(h.ctx, "/filler", strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(h.t, err, rpctypes.ErrNoSpace)
	_, err = h.client.Put(h.ctx, "/x", "")
	require.ErrorIs(h.t, err, rpctypes.ErrNoSpace)
}
