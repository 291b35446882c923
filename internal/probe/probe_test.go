package probe

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

var epoch = time.Now()

func after(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

func TestAllowanceForOutages(t *testing.T) {
	t.Parallel()
	var none outages
	require.Zero(t, none.after(epoch))
	var o outages
	o.add(after(10), after(20), 0)
	o.add(after(25), after(30), 0)
	o.add(after(60), after(100), 0)
	for seen, want := range map[float64]float64{
		-1000: 55, 0: 55, 10: 55, // before all
		12: 53, 19.5: 45.5, // within the first
		20: 45, 25: 45, // after it
		27: 43,
		30: 40, 59: 40, 60: 40,
		99: 1, 100: 0, 1000: 0,
	} {
		require.Equal(t, time.Duration(want*float64(time.Second)), o.after(after(seen)), "seen at %v", seen)
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
		o.add(after(float64(10*i)), after(float64(10*i+4)), 0)
		require.LessOrEqual(t, len(o), maxOutages)
	}
	require.Len(t, o, maxOutages)
	require.Equal(t, 3*maxOutages*4*time.Second, o.after(after(-1)), "none is lost")
	for _, s := range []int{-1, 2, 7, 5_000, 19_999, 20_005, 20_012, 25_001, 29_993, 29_995} {
		seen := after(float64(s))
		require.GreaterOrEqual(t, o.after(seen), exact(seen), "seen at %d", s)
		if s > 10*2*maxOutages+10 {
			require.Equal(t, exact(seen), o.after(seen), "what was not merged is exact")
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
		"regular":                     {[]heard{{0, 1, nil}, {1, 1, nil}, {2, 2.5, nil}}, nil, 2},
		"one and a half intervals":    {[]heard{{0, 0, nil}, {1, 1.5, nil}}, nil, 1},
		"a longer gap":                {[]heard{{0, 0, nil}, {1, 1.6, nil}}, [][2]float64{{1.6, 1.6}}, 1},
		"silence":                     {[]heard{{0, 0, nil}, {60, 61, nil}, {62, 62, nil}}, [][2]float64{{61, 61}, {62, 1}}, 62},
		"two":                         {[]heard{{0, 0, nil}, {5, 6, nil}, {15, 16, nil}}, [][2]float64{{6, 6}, {16, 10}}, 15},
		"slow answer after an outage": {[]heard{{0, 0, nil}, {4, 9, nil}, {9.1, 9.2, nil}, {10, 10, nil}}, [][2]float64{{9, 9}, {9.2, 0.2}}, 10},
		"alarm, however short":        {[]heard{{0, 0, nil}, {1, 1, nospace}, {1.5, 1.5, nil}}, [][2]float64{{1.5, 1.5}}, 1.5},
		"alarm":                       {[]heard{{0, 0, nil}, {1, 1, nospace}, {2, 2, nospace}, {3, 3, nil}, {4, 4, nil}}, [][2]float64{{3, 3}}, 4},
		"late first answer":           {[]heard{{9, 9.5, nil}}, [][2]float64{{9.5, 9.5}}, 9},
		"alarm from the start":        {[]heard{{0, 0, nospace}, {1, 1, nil}}, [][2]float64{{1, 1}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Probe{Options: Options{Interval: time.Second, Patience: 2 * time.Second}, since: epoch}
			for _, h := range c.probes {
				p.answered(after(h.start), after(h.end), h.alarms)
				require.Equal(t, h.alarms, p.Status().Alarms)
				require.True(t, p.Status().OK)
			}
			require.Equal(t, after(c.good), p.Status().Good)
			var got [][2]float64
			for _, o := range p.outages {
				got = append(got, [2]float64{o.end.Sub(epoch).Seconds(), o.more.Seconds()})
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	c := &fake{}
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

// onEtcd runs a probe, once a second with a patience of 2 s, on an etcd in memory under virtual
// time. It has probed twice.
func onEtcd(t *testing.T, test func(*testing.T, *Probe, *memetcd.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		link, err := cluster.Connect()
		require.NoError(t, err)
		p := probing(t, link.Client, second, 5*second, 2*second)
		pass(3 * second / 2)
		test(t, p, cluster)
	})
}

// probing runs a probe until the test ends.
func probing(t *testing.T, etcd *clientv3.Client, interval, timeout, patience time.Duration) *Probe {
	t.Helper()
	p, err := New(Options{Etcd: etcd, Members: 1, Interval: interval, Timeout: timeout, Patience: patience})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return p
}

// requireOutage requires that a fault is an outage from the last good probe to the next one.
func requireOutage(t *testing.T, fault memetcd.Faults) {
	t.Helper()
	onEtcd(t, func(t *testing.T, p *Probe, cluster *memetcd.Cluster) {
		require.False(t, p.Overdue())
		require.Zero(t, p.later(time.Now().Add(-time.Hour)), "from the first probe on all was well")
		good, known := p.Status().Good, time.Now()
		cluster.Set(fault)
		pass(time.Until(good.Add(2 * second)))
		require.False(t, p.Overdue(), "as long as the patience")
		pass(1)
		require.True(t, p.Overdue())
		require.Equal(t, 2*second+1+unfinished, p.later(good))
		pass(20 * second)
		require.False(t, p.Status().OK)
		require.Error(t, p.Status().Err)
		require.Equal(t, good, p.Status().Good)
		cluster.Set(memetcd.Faults{})
		pass(5 * second)
		require.False(t, p.Overdue())
		require.NoError(t, p.Status().Err)
		ended := outagesOf(p).end()
		require.Equal(t, ended.Sub(good), p.later(good), "for all that were seen before")
		require.Equal(t, ended.Sub(known), p.later(known), "for what was seen since, the rest")
		require.Zero(t, p.later(ended), "and for none after it")
	})
}

func TestProbeIsOverdueBeforeTheFirstAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := memetcd.New(memetcd.Options{})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		cluster.Set(memetcd.Faults{Refuse: true})
		link, err := cluster.Connect()
		require.NoError(t, err)
		p := probing(t, link.Client, second, 5*second, 2*second)
		require.True(t, p.Overdue())
		pass(20 * second)
		require.True(t, p.Overdue())
		s := p.Status()
		require.False(t, s.OK)
		require.Error(t, s.Err)
		require.Zero(t, s.Good)
		require.GreaterOrEqual(t, p.later(time.Now()), unfinished, "an outage in progress")
	})
}

func TestEtcdDownIsAnOutage(t *testing.T) {
	t.Parallel()
	requireOutage(t, memetcd.Faults{Refuse: true})
}

func TestEtcdThatHangsIsAnOutage(t *testing.T) {
	t.Parallel()
	requireOutage(t, memetcd.Unreachable())
}

func TestALostQuorumIsAnOutage(t *testing.T) {
	t.Parallel()
	requireOutage(t, memetcd.Faults{NoLeader: true})
}

func TestAnAlarmIsAnOutageUntilDisarmed(t *testing.T) {
	t.Parallel()
	onEtcd(t, func(t *testing.T, p *Probe, cluster *memetcd.Cluster) {
		known := p.Status().Good
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		pass(second)
		require.Equal(t, []string{"NOSPACE"}, p.Status().Alarms)
		require.True(t, p.Status().OK, "etcd answers")
		pass(5 * second)
		require.True(t, p.Overdue(), "for holders cannot renew")
		require.Greater(t, p.later(known), unfinished, "not over yet")
		cluster.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)
		pass(second)
		require.Empty(t, p.Status().Alarms)
		require.False(t, p.Overdue())
		require.Equal(t, p.Status().Good.Sub(known), p.later(known), "from good to good")
		require.Zero(t, p.later(time.Now()))
	})
}

// What the probe relies on is so with real etcd: its user needs no role, and an alarm shows in the
// answer until it is disarmed.
func TestProbeOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	etcd.Guard("nobody", "pw")
	free := etcd.Fill()
	c := etcd.Connect(func(c *clientv3.Config) { c.Username, c.Password = "nobody", "pw" })
	_, err := c.Get(t.Context(), etcd.Prefix)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	p := probing(t, c, 200*time.Millisecond, 10*second, time.Hour)
	etcdtest.Eventually(t, func() bool { return slices.Equal(p.Status().Alarms, []string{"NOSPACE"}) }, "the alarm")
	require.True(t, p.Overdue(), "holders cannot renew")
	free()
	etcdtest.Eventually(t, func() bool { return !p.Overdue() && len(p.Status().Alarms) == 0 }, "a good probe")
	last, err := etcd.Client.Put(t.Context(), etcd.Prefix+"a", "")
	require.NoError(t, err)
	etcdtest.Eventually(t, func() bool { return p.Status().Revision >= last.Header.Revision }, "its revision")
}
