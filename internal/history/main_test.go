package history

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { etcdtest.Main(m, shared.Close) }

// shared is the etcd of the tests that do not compact it.
var shared etcdtest.Shared

// start is when the locks of these tests are taken first.
var start = time.Unix(1_700_000_000, 0).UTC()

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func stamp(seconds int) string { return etcdtest.Stamp(at(seconds)) }

// world is a Reader on a real etcd.
type world struct {
	Reader
	*etcdtest.Etcd
	*spy
	t *testing.T
}

func newWorld(t *testing.T) world { return newWorldOn(t, shared.Start(t)) }

// newWorldOn writes and reads with the client of e.
func newWorldOn(t *testing.T, e *etcdtest.Etcd) world {
	t.Helper()
	layout, err := protocol.NewLayout(e.Prefix)
	require.NoError(t, err)
	s := &spy{KVClient: clientv3.RetryKVClient(e.Client)}
	return world{Reader{
		Store:       lockstore.Store{KV: clientv3.NewKVFromKVClient(s, e.Client), Layout: layout, RequestTimeout: time.Minute},
		AuditPrefix: "/audit" + e.Prefix, ExplainAudit: func(err error) error { return err },
	}, e, s, t}
}

// spy runs hooks before and after transactions that read.
type spy struct {
	etcdserverpb.KVClient
	beforeRead func()
	// afterRead may fail the transaction.
	afterRead func(context.Context, *etcdserverpb.TxnRequest) error
}

func (s *spy) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if s.beforeRead != nil {
		s.beforeRead()
	}
	resp, err := s.KVClient.Txn(ctx, r, opts...)
	if err == nil && s.afterRead != nil {
		err = s.afterRead(ctx, r)
	}
	return resp, err
}

// history reads the history of lock a.
func (w world) history(b Bounds) api.History {
	w.t.Helper()
	h, err := w.Read(w.t.Context(), "a", b)
	require.NoError(w.t, err)
	return h
}

func (w world) key(name, field string) string { return w.Store.Layout.Key(name, field) }

func (w world) acquire(uuid string, deadline int) int64 {
	return w.Set("a", "uuid", uuid, "hostname", "host-"+uuid, "locked_at", stamp(0), "auto_unlock_at", stamp(deadline), "purpose", strings.Repeat("p", 1000))
}

func (w world) renew(alive, deadline int) int64 {
	return w.Set("a", "alive_at", stamp(alive), "auto_unlock_at", stamp(deadline))
}

func (w world) release() int64 { return w.Put(clientv3.OpDelete(w.Prefix+"a/", clientv3.WithPrefix())) }
