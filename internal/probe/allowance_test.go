package probe

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// fake is an etcd that answers at once, with its alarms, unless it is down.
type fake struct {
	down, nospace atomic.Bool
	asked         atomic.Int32
}

func (f *fake) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	f.asked.Add(1)
	if f.down.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	resp := &clientv3.AlarmResponse{}
	if f.nospace.Load() {
		resp.Alarms = []*etcdserverpb.AlarmMember{{Alarm: etcdserverpb.AlarmType_NOSPACE}}
	}
	return resp, nil
}

const second = time.Second

// outagesOf returns the outages so far.
func outagesOf(p *Probe) outages {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.outages)
}

// later returns for how long outages kept holders from renewing after a time.
func (p *Probe) later(known time.Time) time.Duration {
	_, patience := p.Allowance(math.MaxInt64, known, true)
	return patience
}

// bubbled runs a probe, once a second with a patience of 2 s, on a fake etcd under
// virtual time. It has probed twice.
func bubbled(t *testing.T, ended func(context.Context), test func(p *Probe, etcd *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		etcd := &fake{}
		p, err := New(Options{Etcd: etcd, Members: 1, Interval: second, Timeout: 5 * second, Patience: 2 * second, Ended: ended})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		pass(1500 * time.Millisecond)
		test(p, etcd)
		cancel()
		require.NoError(t, <-done)
	})
}

// What an outage adds while it lasts keeps a lock that came due with it, or within the
// minute before, from coming due: the delay grows as time passes.
func TestS3_AnOutageInProgressKeepsLocksFromComingDue(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*fake) *atomic.Bool{
		"down":    func(f *fake) *atomic.Bool { return &f.down },
		"nospace": func(f *fake) *atomic.Bool { return &f.nospace },
	} {
		t.Run(name, func(t *testing.T) {
			bubbled(t, nil, func(p *Probe, etcd *fake) {
				known, good := time.Now(), p.Status().Good
				require.Zero(t, p.later(known))
				fault(etcd).Store(true)
				pass(5 * second)
				require.True(t, p.Overdue())
				for range 100 {
					now := time.Now()
					require.Equal(t, now.Sub(known)+unfinished, p.later(known), "from when it was known")
					require.Equal(t, now.Sub(good)+unfinished, p.later(good.Add(-second)), "from the last good probe on")
					require.Equal(t, unfinished, p.later(now))
					pass(7 * second)
				}
				fault(etcd).Store(false)
				pass(10 * second)
				ended := outagesOf(p).end()
				require.Less(t, time.Since(ended), 10*second+1)
				require.Equal(t, ended.Sub(known), p.later(known), "exact")
				require.Equal(t, ended.Sub(good), p.later(good), "exact")
				require.Zero(t, p.later(ended))
			})
		})
	}
}

// A second outage counts from the end of the first, as the probe that ended it may have
// been slow, and so lies in both.
func TestS3_AnOutageInProgressDoesNotCountTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
		began := time.Now()
		p.begin(began)
		pass(10 * second)
		require.True(t, p.ended(began.Add(4*second), began.Add(4*second), time.Now(), nil, nil), "slow")
		require.Equal(t, 10*second+unfinished, p.later(began), "the next is overdue, but no time has passed")
		pass(3 * second)
		require.Equal(t, 13*second+unfinished, p.later(began))
		require.Equal(t, 3*second+unfinished, p.later(began.Add(10*second)))
		require.Equal(t, 2*second+unfinished, p.later(began.Add(11*second)))
		require.True(t, p.ended(began.Add(12*second), began.Add(12*second), began.Add(12*second), nil, nil))
		require.Equal(t, 12*second, p.later(began))
	})
}

func TestAllowanceBeforeTheFirstProbeIsNone(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Patience: second}}
	require.Zero(t, p.later(time.Now().Add(-time.Hour)))
}

func TestNoOutageWithinOneAndAHalfIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
		p.begin(time.Now())
		pass(3 * second / 2)
		require.Zero(t, p.later(time.Now().Add(-time.Hour)), "one and a half intervals")
		pass(1)
		require.NotZero(t, p.later(time.Now()))
		require.False(t, p.ended(time.Now(), time.Now(), time.Now(), nil, errors.New("refused")))
		require.False(t, p.ended(time.Now(), time.Now(), time.Now(), []string{"NOSPACE"}, nil))
		require.True(t, p.ended(time.Now(), time.Now(), time.Now(), nil, nil))
		require.False(t, p.ended(time.Now(), time.Now(), time.Now(), nil, nil))
		require.Zero(t, p.later(time.Now()))
		require.False(t, p.ended(time.Now(), time.Now(), time.Now(), []string{"NOSPACE"}, nil))
		require.Equal(t, unfinished, p.later(time.Now()), "an alarm is an outage at once")
		require.True(t, p.ended(time.Now(), time.Now(), time.Now(), nil, nil))
		pass(2 * second)
		require.False(t, p.Overdue(), "as long as the patience")
		pass(1)
		require.True(t, p.Overdue())
	})
}

// Ended is called once for each outage, also for one by an alarm shorter than the
// patience, and not for less.
func TestS3_EndedIsCalledWhenAnOutageEnds(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	bubbled(t, func(context.Context) { calls.Add(1) }, func(_ *Probe, etcd *fake) {
		pass(10 * second)
		require.Zero(t, calls.Load())
		etcd.down.Store(true)
		pass(20 * second)
		require.Zero(t, calls.Load(), "not over")
		etcd.down.Store(false)
		pass(10 * second)
		require.EqualValues(t, 1, calls.Load())
		etcd.nospace.Store(true)
		pass(second)
		etcd.nospace.Store(false)
		pass(10 * second)
		require.EqualValues(t, 2, calls.Load())
	})
}

// What Ended does, which takes the longer the more locks there are, delays no probe: that
// would be another outage, and so on without end.
func TestS3_EndedDelaysNoProbe(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	ended := func(context.Context) {
		calls.Add(1)
		pass(30 * second)
	}
	bubbled(t, ended, func(p *Probe, etcd *fake) {
		etcd.down.Store(true)
		pass(20 * second)
		etcd.down.Store(false)
		pass(10 * second)
		require.EqualValues(t, 1, calls.Load())
		asked := etcd.asked.Load()
		pass(10 * second)
		require.InDelta(t, 10, etcd.asked.Load()-asked, 1)
		require.False(t, p.Overdue())
		require.Len(t, outagesOf(p), 1)
		for range 2 { // two end while Ended is at work: one call follows
			etcd.nospace.Store(true)
			pass(1500 * time.Millisecond)
			etcd.nospace.Store(false)
			pass(1500 * time.Millisecond)
		}
		require.Len(t, outagesOf(p), 3)
		pass(5 * time.Minute)
		require.EqualValues(t, 2, calls.Load())
	})
}

// Run ends although Ended waits for a table that has stopped serving.
func TestRunEndsWhileEndedWaits(t *testing.T) {
	t.Parallel()
	var left atomic.Bool
	bubbled(t, func(ctx context.Context) {
		<-ctx.Done()
		pass(second)
		left.Store(true)
	}, func(_ *Probe, etcd *fake) {
		etcd.nospace.Store(true)
		pass(2 * second)
		etcd.nospace.Store(false)
		pass(2 * second)
	})
	require.True(t, left.Load(), "and waits for it")
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }
