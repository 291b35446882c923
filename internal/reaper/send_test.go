package reaper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestBatchesOfEverySizeGoInOneTransaction(t *testing.T) {
	for _, n := range []int{1, 2, 16, 64, 124} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newHouse(t, sharedClient(t), func(o *Options) { o.BatchSize = n })
			all := names("n%03d", n)
			h.expired(append(all, "stays")...)
			candidates := h.candidates(all...)
			h.kv.before = func() { h.put(all[n/2], map[string]string{"hostname": "other"}) }
			require.NoError(t, h.handle(candidates...))
			require.Len(t, h.kv.sent(), 1)
			require.Len(t, h.keys(), 10)
			require.Equal(t, n-1, h.removed())
			require.EqualValues(t, 1, h.Stats().Conflicts)
			require.Len(t, h.logs.with(t, msgRemoved, ""), n-1)
			require.Len(t, h.logs.with(t, msgConflict, all[n/2]), 1)
		})
	}
}

func TestBatchesThatDoNotFitAreHalvedBeforeTheyAreSent(t *testing.T) {
	h := newHouse(t, sharedClient(t), func(o *Options) { o.BatchSize = 64 })
	all := names("n%03d", 20)
	h.expired(all...)
	h.crowd("n003/x%03d", 115)
	h.put("n003", map[string]string{"note": "so that all gaps are looked for"})
	h.remove(all...)
	require.Len(t, h.keys(), 115)
	require.Equal(t, 20, h.removed())
	require.Empty(t, h.failures())
	require.Len(t, h.kv.sent(), 2)
}

func TestAServerThatTakesLessGetsHalves(t *testing.T) {
	cluster := localetcd.ForTest(t, localetcd.Options{MaxTxnOps: 12})
	cli, err := cluster.Client()
	require.NoError(t, err)
	h := newHouse(t, cli, func(o *Options) { o.BatchSize = 64 })
	all := append(names("n%03d", 40), "big")
	h.expired(append(all, "stays")...)
	h.put("big", map[string]string{"backtrace": string(make([]byte, 64<<10))})
	h.remove(all...)
	require.Len(t, h.keys(), 5)
	require.Equal(t, len(all), h.removed())
	require.Empty(t, h.failures())
	require.Len(t, h.logs.with(t, msgRemoving, ""), len(all), "halving says nothing twice")
}

func TestACulpritTooLargeHoldsNobodyUp(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	culprit := strings.Repeat("x", 400<<10)
	all := names("n%03d", 15)
	h.expired(all...)
	for _, f := range []string{"uuid", "auto_unlock_at"} {
		_, err := h.cli.Put(h.ctx, h.Layout.Key(culprit, f), past.String())
		require.NoError(t, err)
	}
	for round := range 2 {
		candidates := append(h.candidates(all[:8-8*round]...), h.candidate(culprit))
		candidates = append(candidates, h.candidates(all[8:15-7*round]...)...)
		candidates[slices.IndexFunc(candidates, func(c Candidate) bool { return c.Name == culprit })].Attempts = 5 * round
		require.NoError(t, h.handle(candidates...))
	}
	require.Len(t, h.keys(), 2)
	require.Equal(t, 15, h.removed())
	require.Equal(t, map[Reason]uint64{ReasonTooLarge: 2}, h.failures())
	back := h.source.postponed()
	require.Len(t, back, 2)
	require.GreaterOrEqual(t, back[0].delay, leastBackoff/2)
	require.Greater(t, back[1].delay, time.Second)
	for _, line := range h.logs.with(t, msgCannot, "") {
		require.Less(t, line["bytes"], 8<<10)
	}
}

// Many of them: the read, too, is more than etcd takes at once.
func TestCulpritsTooLargeToBeReadTogether(t *testing.T) {
	h := newHouse(t, sharedClient(t))
	var candidates []Candidate
	for i := range 5 {
		culprit := strings.Repeat(fmt.Sprint(i), 400<<10)
		for _, f := range []string{"uuid", "auto_unlock_at"} {
			_, err := h.cli.Put(h.ctx, h.Layout.Key(culprit, f), past.String())
			require.NoError(t, err)
		}
		candidates = append(candidates, h.candidate(culprit))
	}
	h.expired("a")
	require.NoError(t, h.handle(append(candidates, h.candidate("a"))...))
	require.Len(t, h.keys(), 10)
	require.Equal(t, map[Reason]uint64{ReasonTooLarge: 5}, h.failures())
	require.Len(t, h.source.postponed(), 5)
	for _, p := range h.source.postponed() {
		require.NotZero(t, p.delay)
	}
}

// withRoles turns authentication on and returns a client of a user who may do
// with each range what its role says.
func withRoles(t *testing.T, cluster *localetcd.Cluster, grants map[[2]string]clientv3.PermissionType) *clientv3.Client {
	t.Helper()
	root, err := cluster.Client()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
	cli, err := cluster.Client(func(cfg *clientv3.Config) { cfg.Username, cfg.Password = "unlocker", "u" })
	require.NoError(t, err)
	return cli
}

func TestALockWithoutPermissionHoldsNobodyUp(t *testing.T) {
	for name, secret := range map[string]clientv3.PermissionType{"neither read nor write": -1, "read only": clientv3.PermissionType(clientv3.PermRead)} {
		t.Run(name, func(t *testing.T) {
			cluster := localetcd.ForTest(t, localetcd.Options{})
			open, err := cluster.Client()
			require.NoError(t, err)
			h := newHouse(t, open)
			all := append(names("n%03d", 9), "p/secret", "p/secret/x")
			h.expired(append(all, "stays")...)
			h.put("p/secret/x", map[string]string{"backtrace": string(make([]byte, 64<<10))})
			candidates := h.candidates(all...)
			prefix := h.Layout.Prefix()
			grants := map[[2]string]clientv3.PermissionType{
				{prefix, prefix + "o"}:       clientv3.PermissionType(clientv3.PermReadWrite),
				{prefix + "q", prefix + "t"}: clientv3.PermissionType(clientv3.PermReadWrite),
			}
			if secret >= 0 {
				grants[[2]string{prefix + "p", prefix + "q"}] = secret
			}
			h.kv.KV = withRoles(t, cluster, grants)
			require.NoError(t, h.handle(candidates...), "etcd itself does not fail")
			require.Equal(t, 9, h.removed())
			require.Equal(t, map[Reason]uint64{ReasonPermission: 2}, h.failures())
			back := h.source.postponed()
			require.Len(t, back, 2)
			for _, p := range back {
				require.GreaterOrEqual(t, p.delay, leastBackoff/2)
			}
			for _, c := range candidates[:9] {
				require.Len(t, h.logs.with(t, msgRemoving, c.Name), 1)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Reason
	}{
		{rpctypes.ErrTooManyOps, ReasonTooLarge},
		{rpctypes.ErrGRPCRequestTooLarge, ReasonTooLarge},
		{status.Error(codes.ResourceExhausted, "grpc: received message larger than max (3 vs. 2)"), ReasonTooLarge},
		{rpctypes.ErrTooManyRequests, ReasonBusy},
		{rpctypes.ErrNoSpace, ReasonRejected},
		{rpctypes.ErrPermissionDenied, ReasonPermission},
		{rpctypes.ErrInvalidAuthToken, ReasonAuth},
		{rpctypes.ErrUserEmpty, ReasonAuth},
		{rpctypes.ErrNoLeader, ReasonNoLeader},
		{rpctypes.ErrTimeout, ReasonAmbiguous},
		{rpctypes.ErrTimeoutDueToLeaderFail, ReasonAmbiguous},
		{rpctypes.ErrLeaderChanged, ReasonAmbiguous},
		{context.DeadlineExceeded, ReasonAmbiguous},
		{context.Canceled, ReasonAmbiguous},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), ReasonAmbiguous},
		{errors.New("whatever"), ReasonAmbiguous},
	} {
		require.Equal(t, c.want, classify(c.err), "%v", c.err)
		require.Contains(t, Reasons(), c.want)
	}
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	for tries, most := range map[int]time.Duration{0: 150 * time.Millisecond, 1: 150 * time.Millisecond, 3: 600 * time.Millisecond, 1_000: 7500 * time.Millisecond} {
		for range 100 {
			d := backoff(tries)
			require.GreaterOrEqual(t, d, most/3)
			require.Less(t, d, most)
		}
	}
}
