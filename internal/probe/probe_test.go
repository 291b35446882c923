package probe

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

var epoch = time.Now()

func after(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

func TestAllowanceForOutages(t *testing.T) {
	t.Parallel()
	var none outages
	require.Zero(t, none.since(epoch))
	var o outages
	o.add(after(20), 10*time.Second)  // 10 to 20
	o.add(after(30), 5*time.Second)   // 25 to 30
	o.add(after(100), 40*time.Second) // 60 to 100
	for seen, want := range map[float64]float64{
		-1000: 55, 0: 55, 10: 55, // before all
		12: 53, 19.5: 45.5, // within the first
		20: 45, 25: 45, // after it
		27: 43,
		30: 40, 59: 40, 60: 40,
		99: 1, 100: 0, 1000: 0,
	} {
		require.Equal(t, time.Duration(want*float64(time.Second)), o.since(after(seen)), "seen at %v", seen)
	}
}

// Merging may give a lock too much, but never too little.
func TestOutagesBeyondTheLimitOnlyDelay(t *testing.T) {
	t.Parallel()
	var o outages
	exact := func(seen time.Time) (sum time.Duration) {
		for i := range 3 * maxOutages {
			end := after(float64(10*i + 4))
			sum += min(4*time.Second, max(0, end.Sub(seen)))
		}
		return sum
	}
	for i := range 3 * maxOutages {
		o.add(after(float64(10*i+4)), 4*time.Second)
		require.LessOrEqual(t, len(o), maxOutages)
	}
	require.Equal(t, 3*maxOutages*4*time.Second, o.since(after(-1)), "none is lost")
	for _, s := range []int{-1, 2, 7, 5_000, 19_999, 20_005, 20_012, 25_001, 29_993, 29_995} {
		seen := after(float64(s))
		require.GreaterOrEqual(t, o.since(seen), exact(seen), "seen at %d", s)
		if s > 10*2*maxOutages+10 {
			require.Equal(t, exact(seen), o.since(seen), "what was not merged is exact")
		}
	}
}

// heard is a probe that began and ended at times, with the alarms it brought.
type heard struct {
	start, end float64
	alarms     []string
}

func TestOutageIsFromGoodToGood(t *testing.T) {
	t.Parallel()
	nospace := []string{"NOSPACE"}
	for name, c := range map[string]struct {
		probes []heard
		// ends and lengths of the outages
		want [][2]float64
		good float64
	}{
		"regular":                       {[]heard{{0, 1, nil}, {1, 1, nil}, {2, 2.9, nil}}, nil, 2},
		"a gap as long as the patience": {[]heard{{0, 0, nil}, {1, 2, nil}}, nil, 1},
		"a longer gap":                  {[]heard{{0, 0, nil}, {1, 2.5, nil}}, [][2]float64{{2.5, 2.5}}, 1},
		"silence":                       {[]heard{{0, 0, nil}, {60, 61, nil}, {62, 62, nil}}, [][2]float64{{61, 61}}, 62},
		"two":                           {[]heard{{0, 0, nil}, {5, 6, nil}, {15, 16, nil}}, [][2]float64{{6, 6}, {16, 10}}, 15},
		"slow answer after an outage":   {[]heard{{0, 0, nil}, {4, 9, nil}, {9.1, 9.2, nil}, {10, 10, nil}}, [][2]float64{{9, 9}, {9.2, 0.2}}, 10},
		"alarm, however short":          {[]heard{{0, 0, nil}, {1, 1, nospace}, {1.5, 1.5, nil}}, [][2]float64{{1.5, 1.5}}, 1.5},
		"alarm":                         {[]heard{{0, 0, nil}, {1, 1, nospace}, {2, 2, nospace}, {3, 3, nil}, {4, 4, nil}}, [][2]float64{{3, 3}}, 4},
		"late first answer":             {[]heard{{9, 9.5, nil}}, [][2]float64{{9.5, 9.5}}, 9},
		"alarm from the start":          {[]heard{{0, 0, nospace}, {1, 1, nil}}, [][2]float64{{1, 1}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Probe{Options: Options{Patience: 2 * time.Second}, since: epoch}
			for _, h := range c.probes {
				p.answered(after(h.start), after(h.end), h.alarms)
				require.Equal(t, h.alarms, p.Status().Alarms)
				require.True(t, p.Status().OK)
			}
			require.Equal(t, after(c.good), p.Status().Good)
			var got [][2]float64
			for _, o := range p.outages {
				got = append(got, [2]float64{o.end.Sub(epoch).Seconds(), o.length.Seconds()})
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	c := unreachable(t)
	for _, o := range []Options{
		{},
		{Members: 1, Interval: 1, Timeout: 1, Patience: 2},
		{Etcd: c, Interval: 1, Timeout: 1, Patience: 2},
		{Etcd: c, Members: 1, Timeout: 1, Patience: 2},
		{Etcd: c, Members: 1, Interval: 1, Patience: 2},
		{Etcd: c, Members: 1, Interval: 2, Timeout: 1},
	} {
		_, err := New(o)
		require.EqualError(t, err, "probe: Etcd, Members, Interval, Timeout and Patience are required")
	}
}

// unreachable returns a client that no server answers.
func unreachable(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// probing runs a probe until the test ends. An outage is longer than what a busy machine may need
// for an answer.
func probing(t *testing.T, c *clientv3.Client) *Probe {
	t.Helper()
	p, err := New(Options{Etcd: c, Members: len(c.Endpoints()), Interval: 200 * time.Millisecond, Timeout: 5 * time.Second, Patience: 6 * time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return p
}

// fine waits for a good probe that began after now.
func fine(t *testing.T, p *Probe) {
	t.Helper()
	now := time.Now()
	etcdtest.Eventually(t, func() bool { return p.Status().Good.After(now) }, "a good probe")
}

func TestProbeIsOverdueBeforeTheFirstAnswer(t *testing.T) {
	t.Parallel()
	p := probing(t, unreachable(t))
	require.True(t, p.Overdue())
	etcdtest.Eventually(t, func() bool { return p.Status().Err != nil }, "a failure")
	require.True(t, p.Overdue())
	s := p.Status()
	require.False(t, s.OK)
	require.Zero(t, s.Good)
	etcdtest.Eventually(t, func() bool { return p.Allowance(time.Now()) >= unfinished }, "an outage in progress")
}

func TestEtcdKilledAndRestartedIsAnOutage(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{})
	p := probing(t, cluster.Client)
	fine(t, p)
	require.False(t, p.Overdue())
	require.Zero(t, p.Allowance(epoch), "from the first probe on all was well")
	seen := time.Now()
	fine(t, p)
	killed := time.Now()
	cluster.Kill(0)
	dead := time.Now()
	etcdtest.Eventually(t, func() bool { return p.Overdue() && p.Status().Err != nil }, "overdue")
	require.False(t, p.Status().OK)
	etcdtest.Eventually(t, func() bool { return time.Since(killed) > 1500*time.Millisecond }, "a while")
	restart := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Soon)
	defer cancel()
	require.NoError(t, cluster.Restart(ctx))
	fine(t, p)
	back := time.Now()
	require.False(t, p.Overdue())
	require.NoError(t, p.Status().Err)
	allowance := p.Allowance(seen)
	require.GreaterOrEqual(t, allowance, restart.Sub(dead))
	require.LessOrEqual(t, allowance, back.Sub(killed)+p.Patience)
	require.Equal(t, allowance, p.Allowance(epoch), "for all that were seen before")
	require.Zero(t, p.Allowance(back), "and for none after it")
	require.InDelta(t, allowance.Seconds(), (p.Allowance(dead) + dead.Sub(killed)).Seconds(), p.Patience.Seconds())
}

func TestNoSpaceIsAnOutageUntilDisarmed(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	p := probing(t, etcd.Client)
	fine(t, p)
	seen := time.Now()
	fine(t, p)
	free := etcd.Fill()
	raised := time.Now()
	etcdtest.Eventually(t, func() bool { return slices.Equal(p.Status().Alarms, []string{"NOSPACE"}) }, "the alarm")
	require.True(t, p.Status().OK, "etcd answers")
	etcdtest.Eventually(t, func() bool { return p.Overdue() }, "overdue, for holders cannot renew")
	etcdtest.Eventually(t, func() bool { return time.Since(raised) > time.Second }, "a while")
	require.Greater(t, p.Allowance(seen), unfinished, "not over yet")
	disarm := time.Now()
	free()
	fine(t, p)
	require.Empty(t, p.Status().Alarms)
	require.False(t, p.Overdue())
	require.GreaterOrEqual(t, p.Allowance(seen), disarm.Sub(raised))
	require.LessOrEqual(t, p.Allowance(seen), time.Since(seen))
	require.Zero(t, p.Allowance(time.Now()))
}

// The probe's user needs no role.
func TestProbeNeedsNoPermission(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, localetcd.Options{})
	etcd.Guard("nobody", "pw")
	c := etcd.Connect(func(c *clientv3.Config) { c.Username, c.Password = "nobody", "pw" })
	_, err := c.Get(t.Context(), etcd.Prefix)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	p := probing(t, c)
	fine(t, p)
	require.False(t, p.Overdue())
	require.NoError(t, p.Status().Err)
}

func TestProbeOfALostQuorumIsOverdue(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, localetcd.Options{Members: 3})
	p := probing(t, cluster.Client)
	fine(t, p)
	cluster.Kill(1)
	cluster.Kill(2)
	etcdtest.Eventually(t, p.Overdue, "no renewal can pass")
	ctx, cancel := context.WithTimeout(t.Context(), etcdtest.Soon)
	defer cancel()
	require.NoError(t, cluster.Restart(ctx))
	fine(t, p)
	require.NotZero(t, p.Allowance(epoch), fmt.Sprint(outagesOf(p)))
}
