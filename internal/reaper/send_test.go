package reaper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestBatchesOfEverySizeGoInOneTransaction(t *testing.T) {
	for _, n := range []int{1, 2, 16, 64, 124} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Rules.BatchSize = n })
			all := names("n%03d", n)
			h.expired(append(all, "stays")...)
			due := h.dues(all...)
			h.before = func(context.Context) { h.set(all[n/2], "hostname", "other") }
			h.handle(due...)
			require.EqualValues(t, 1, h.sent.Load())
			require.Len(t, h.keys(), 10)
			require.Equal(t, n-1, h.removed())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Len(t, h.log.with(t, api.LogRemoved, ""), n-1)
			require.Len(t, h.log.with(t, api.LogConflict, all[n/2]), 1)
		})
	}
}

// unfit is how many locks etcd can read, but not remove, in one transaction.
const unfit = 128

func TestBatchesThatDoNotFitAreHalvedBeforeTheyAreSent(t *testing.T) {
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Rules.BatchSize = unfit })
	all := names("n%03d", unfit)
	h.expired(all...)
	h.remove(all...)
	require.Empty(t, h.keys())
	require.Equal(t, unfit, h.removed())
	require.Empty(t, h.failures())
	require.EqualValues(t, 2, h.sent.Load())
}

// etcd does nothing else while it deletes many keys.
func TestABatchWithManyKeysIsHalved(t *testing.T) {
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Rules.BatchSize = 64 })
	all := names("n%03d", 20)
	h.expired(all...)
	for _, name := range all {
		var fields []string
		for _, field := range names("purpose-%02d", 46) {
			fields = append(fields, field, "x")
		}
		h.set(name, fields...)
	}
	h.remove(all...)
	require.Empty(t, h.keys())
	require.Equal(t, len(all), h.removed())
	require.EqualValues(t, 2, h.sent.Load())
}

func TestAServerThatTakesLessGetsHalves(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{MaxTxnOps: 12})
	h := newHarness(t, client, func(o *reaper.Options) { o.Rules.BatchSize = 64 })
	all := append(names("n%03d", 40), "big")
	h.expired(append(all, "stays")...)
	h.set("big", "backtrace", strings.Repeat("x", 64<<10))
	h.remove(all...)
	require.Len(t, h.keys(), 5)
	require.Equal(t, len(all), h.removed())
	require.Empty(t, h.failures())
	require.Len(t, h.log.with(t, api.LogRemoving, ""), len(all), "halving logs nothing twice")
}

// leaderless refuses what deletes while it is on.
type leaderless struct {
	etcdserverpb.KVClient
	is *atomic.Bool
}

func (l leaderless) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if l.is.Load() && r.Success[0].GetRequestRange() == nil {
		return nil, rpctypes.ErrGRPCNoLeader
	}
	return l.KVClient.Txn(ctx, r, opts...)
}

// What etcd refuses because of itself is not sent again in halves, and not without a growing pause.
func TestAFailureOfEtcdIsNotOneOfALock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		var is atomic.Bool
		h.KVClient = leaderless{h.KVClient, &is}
		all := names("n%d", 4)
		h.expired(all...)
		is.Store(true)
		h.remove(all...)
		require.EqualValues(t, 1, h.sent.Load())
		require.Equal(t, map[lockstore.Reason]uint64{etcd.NoLeader: 4}, h.failures())

		h.source.again = true
		h.give(h.dues(all...)...)
		<-time.After(2 * time.Minute)
		require.InDelta(t, 2*60/5, h.sent.Load(), 15, "neither never again nor without a pause")
		is.Store(false)
		<-time.After(time.Minute)
		require.Equal(t, 4, h.removed())
	})
}

// tooLarge writes a lock whose name takes more than one request can.
func (h *harness) tooLarge(letter string) table.View {
	h.t.Helper()
	name := strings.Repeat(letter, 400<<10)
	h.set(name, "uuid", "u")
	h.set(name, "auto_unlock_at", expiry)
	return h.due(name)
}

func TestACulpritTooLargeHoldsNobodyUp(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	all := names("n%03d", 15)
	h.expired(all...)
	culprit, others := h.tooLarge("x"), h.dues(all...)
	h.handle(append(append(others[:8:8], culprit), others[8:]...)...)
	culprit.Attempts = 5
	h.handle(culprit)
	require.Len(t, h.keys(), 2)
	require.Equal(t, 15, h.removed())
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonTooLarge: 2}, h.failures())
	back := h.source.postponed()
	require.Len(t, back, 2)
	require.GreaterOrEqual(t, back[0].delay, 50*time.Millisecond)
	require.Greater(t, back[1].delay, time.Second)
	for _, line := range h.log.with(t, api.LogCannotRemove, "") {
		require.Less(t, len(line.text), 8<<10)
	}
}

// Many of them: the read, too, is more than etcd takes at once.
func TestCulpritsTooLargeToBeReadTogether(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	var due []table.View
	for i := range 5 {
		due = append(due, h.tooLarge(fmt.Sprint(i)))
	}
	h.expired("a")
	h.handle(append(due, h.due("a"))...)
	require.Len(t, h.keys(), 10)
	require.Equal(t, map[lockstore.Reason]uint64{lockstore.ReasonTooLarge: 5}, h.failures())
	require.Len(t, h.source.postponed(), 5)
	for _, p := range h.source.postponed() {
		require.NotZero(t, p.delay)
	}
}

// withRoles turns authentication on and returns a client of a user who may do with
// each range what its role says.
func withRoles(t *testing.T, cluster *localetcd.Cluster, grants map[[2]string]clientv3.PermissionType) *clientv3.Client {
	t.Helper()
	root, err := cluster.Client()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var failed error
	try := func(_ any, err error) { failed = errors.Join(failed, err) }
	try(root.UserAdd(ctx, "root", "r"))
	try(root.UserGrantRole(ctx, "root", "root"))
	try(root.UserAdd(ctx, "unlocker", "u"))
	try(root.RoleAdd(ctx, "unlocker"))
	for r, p := range grants {
		try(root.RoleGrantPermission(ctx, "unlocker", r[0], r[1], p))
	}
	try(root.UserGrantRole(ctx, "unlocker", "unlocker"))
	try(root.AuthEnable(ctx))
	require.NoError(t, failed)
	client, err := cluster.Client(func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "unlocker", "u" })
	require.NoError(t, err)
	return client
}

func TestALockWithoutPermissionHoldsNobodyUp(t *testing.T) {
	const all = clientv3.PermissionType(clientv3.PermReadWrite)
	for name, secret := range map[string]clientv3.PermissionType{"neither read nor write": -1, "read only": clientv3.PermissionType(clientv3.PermRead)} {
		t.Run(name, func(t *testing.T) {
			cluster, direct := newEtcd(t, localetcd.Options{})
			h := newHarness(t, direct)
			locks := append(names("n%03d", 9), "p/secret", "p/secret/x")
			h.expired(append(locks, "stays")...)
			h.set("p/secret/x", "backtrace", strings.Repeat("x", 64<<10))
			due, prefix := h.dues(locks...), h.direct.Layout.Prefix()
			grants := map[[2]string]clientv3.PermissionType{{prefix, prefix + "o"}: all, {prefix + "q", prefix + "t"}: all}
			if secret >= 0 {
				grants[[2]string{prefix + "p", prefix + "q"}] = secret
			}
			h.KVClient = clientv3.RetryKVClient(withRoles(t, cluster, grants))
			h.handle(due...)
			require.Equal(t, 9, h.removed())
			require.Equal(t, map[lockstore.Reason]uint64{etcd.PermissionDenied: 2}, h.failures(), "etcd itself does not fail")
			back := h.source.postponed()
			require.Len(t, back, 2)
			for _, p := range back {
				require.GreaterOrEqual(t, p.delay, 50*time.Millisecond)
			}
			for _, name := range locks[:9] {
				require.Len(t, h.log.with(t, api.LogRemoving, name), 1)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	h := newHarness(t, nil)
	for i, edit := range []func(*reaper.Options){
		func(o *reaper.Options) { o.Store.KV = nil }, func(o *reaper.Options) { o.Store.Layout = protocol.Layout{} },
		func(o *reaper.Options) { o.Store.RequestTimeout = 0 }, func(o *reaper.Options) { o.Source = nil },
		func(o *reaper.Options) { o.Delay = nil }, func(o *reaper.Options) { o.Logger = nil },
		func(o *reaper.Options) { o.Signals = nil }, func(o *reaper.Options) { o.Leader = nil },
		func(o *reaper.Options) { o.Probe = nil }, func(o *reaper.Options) { o.Pauses = nil },
	} {
		o := h.Options
		edit(&o)
		_, err := reaper.New(o)
		require.Error(t, err, i)
	}
}
