package probe

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// members is an etcd whose members are asked in turn, as gRPC does. Each answers as its number
// says what to do.
type members struct {
	asked  atomic.Int32
	answer func(ctx context.Context, member int) error
	// explain is that of Options.
	explain func(error) error
}

func (m *members) AlarmList(ctx context.Context) (*clientv3.AlarmResponse, error) {
	if err := m.answer(ctx, int(m.asked.Add(1)-1)%3); err != nil {
		return nil, err
	}
	return &clientv3.AlarmResponse{}, nil
}

func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

var errRefused = errors.New("refused")

// Each probe asks all members, whatever else is sent in between, so that it is learned soon which
// hangs.
func TestEachProbeAsksAllMembers(t *testing.T) {
	t.Parallel()
	var asked [3]atomic.Int32
	m := &members{answer: func(_ context.Context, member int) error {
		asked[member].Add(1)
		return nil
	}}
	probed(t, m, func(*Probe) {
		for probes := range 10 {
			pass(second / 2)
			for member := range asked {
				require.EqualValues(t, probes+1, asked[member].Load(), member)
			}
			m.asked.Add(int32(probes)) // other requests
			pass(second / 2)
		}
	})
}

// probed runs a probe on members under virtual time. After Run, Begin asks nobody.
func probed(t *testing.T, m *members, test func(*Probe)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{Etcd: m, Members: 3, Interval: second, Timeout: 5 * second, Patience: 2 * second, Explain: m.explain})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		test(p)
		cancel()
		require.NoError(t, <-done)
		asked := m.asked.Load()
		pass(second)
		p.Begin()
		pass(second)
		require.Equal(t, asked, m.asked.Load())
	})
}

// One member of three costs no probe, whatever it does.
func TestOneMemberCostsNoProbe(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(context.Context) error{
		"hangs":    hangs,
		"refuses":  func(context.Context) error { return errRefused },
		"is slow":  func(context.Context) error { pass(3 * second); return nil },
		"is stuck": func(context.Context) error { pass(second); return errRefused },
	} {
		t.Run(name, func(t *testing.T) {
			probed(t, &members{answer: func(ctx context.Context, member int) error {
				if member == 1 {
					return fault(ctx)
				}
				return nil
			}}, func(p *Probe) {
				pass(second / 2)
				for range 1000 {
					s := p.Status()
					require.True(t, s.OK)
					require.True(t, s.Up)
					require.NoError(t, s.Err)
					require.Zero(t, s.Failed)
					require.False(t, p.Overdue())
					require.Zero(t, p.later(s.Good.Add(-time.Hour)))
					pass(second / 10)
				}
			})
		})
	}
}

// alarmed is an etcd in which the first answer comes late, and shows an alarm that is over.
type alarmed struct{ asked atomic.Int32 }

func (a *alarmed) AlarmList(context.Context) (*clientv3.AlarmResponse, error) {
	resp := &clientv3.AlarmResponse{}
	if a.asked.Add(1) == 1 {
		pass(second * 3 / 4)
		resp.Alarms = append(resp.Alarms, &etcdserverpb.AlarmMember{Alarm: etcdserverpb.AlarmType_NOSPACE})
	}
	return resp, nil
}

func TestS3_AnAlarmCountsThatALaterAnswerShows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{Etcd: &alarmed{}, Members: 1, Interval: second, Timeout: 5 * second, Patience: 2 * second})
		require.NoError(t, err)
		start := time.Now()
		p.once(t.Context())
		require.True(t, p.Status().OK)
		require.Zero(t, p.Status().Alarmed)
		p.requests.Wait()
		require.Equal(t, []string{"NOSPACE"}, p.Status().Alarms)
		require.Equal(t, second*3/4, p.Status().Alarmed.Sub(start))
		require.GreaterOrEqual(t, p.later(start), unfinished, "an outage at once")
		p.once(t.Context())
		require.Equal(t, second/2, p.later(start), "from good to good")
		require.Empty(t, p.Status().Alarms)
	})
}

// Of two answers to a probe, the alarm counts that one of them shows, also if that came first.
func TestS3_AnAlarmCountsThatAnotherAnswerHasShown(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Patience: 2 * second}}
	start := time.Now()
	p.begin(start)
	p.note(start.Add(1), &clientv3.AlarmResponse{Alarms: []*etcdserverpb.AlarmMember{{Alarm: etcdserverpb.AlarmType_NOSPACE}}})
	require.False(t, p.ended(start, start, start.Add(2), nil, nil))
	require.Equal(t, []string{"NOSPACE"}, p.Status().Alarms)
	require.Zero(t, p.Status().Good)
	p.begin(start.Add(second))
	require.True(t, p.ended(start.Add(second), start.Add(second), start.Add(second), nil, nil))
	require.Empty(t, p.Status().Alarms)
	require.False(t, p.ended(start, start, start.Add(second), []string{"NOSPACE"}, nil), "its own, whatever a newer probe says")
	require.Equal(t, []string{"NOSPACE"}, p.Status().Alarms)
}

// The shortest interval that the configuration allows does not flood etcd with requests.
func TestRequestsHaveAMinimumDistance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &members{answer: func(ctx context.Context, _ int) error { return hangs(ctx) }}
		p, err := New(Options{Etcd: m, Members: 3, Interval: 1, Timeout: second, Patience: 2 * second})
		require.NoError(t, err)
		require.Error(t, p.ask(t.Context()).err)
		p.requests.Wait()
		require.InDelta(t, second/minShare+2, m.asked.Load(), 1)
	})
}

// A probe fails where no member answers, once all have refused and two requests more, or the timeout
// has passed.
func TestS3_AProbeFailsWhereNoMemberAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(context.Context) error
		failed time.Duration
	}{
		"all hang":   {hangs, 5 * second},
		"all refuse": {func(context.Context) error { return errRefused }, second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			probed(t, &members{answer: func(ctx context.Context, _ int) error { return c.answer(ctx) }}, func(p *Probe) {
				pass(c.failed - 1)
				require.NoError(t, p.Status().Err)
				pass(2)
				s := p.Status()
				require.False(t, s.OK)
				require.Error(t, s.Err)
				require.Equal(t, time.Now().Add(-1), s.Failed)
				require.True(t, p.Overdue())
				require.Zero(t, s.Good)
			})
		})
	}
}

// Where requests are not answered and it is not yet time for more, a probe ends with the timeout and with Run.
func TestAProbeEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &members{answer: func(ctx context.Context, _ int) error { return hangs(ctx) }}
		p, err := New(Options{Etcd: m, Members: 3, Interval: second, Timeout: second / 5, Patience: 2 * second})
		require.NoError(t, err)
		began := time.Now()
		require.ErrorIs(t, p.ask(t.Context()).err, context.DeadlineExceeded)
		require.Equal(t, second/5, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), second/10)
		defer cancel()
		require.NoError(t, p.Run(ctx))
		require.Equal(t, second/5+second/10, time.Since(began))
	})
}

// A request that was lost shows nothing: what was answered is a later one, and it counts from when
// that began.
func TestS3_AProbeCountsFromTheRequestThatWasAnswered(t *testing.T) {
	t.Parallel()
	var elects atomic.Bool
	probed(t, &members{answer: func(ctx context.Context, _ int) error {
		if elects.Load() {
			return hangs(ctx) // lost with the leader, also where there is another one soon
		}
		pass(second / 10)
		return nil
	}}, func(p *Probe) {
		pass(5*second + second/2)
		good := p.Status().Good
		elects.Store(true)
		pass(2*second + 1)
		elects.Store(false)
		pass(2 * second / 5)
		s := p.Status()
		require.True(t, s.OK)
		require.Zero(t, s.Failed)
		require.Equal(t, good.Add(2*second+3*second/4), s.Good)
		require.Equal(t, 2*second+second/10+3*second/4, p.later(good), "from good to good")
	})
}

// Up is false soon after etcd hangs, and does not come and go where it is slow.
func TestUpFollowsSoon(t *testing.T) {
	t.Parallel()
	var delay atomic.Int64
	probed(t, &members{answer: func(ctx context.Context, _ int) error {
		select {
		case <-time.After(time.Duration(delay.Load())):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}, func(p *Probe) {
		require.False(t, p.Status().Up)
		pass(10*second + 1)
		require.True(t, p.Status().Up)
		delay.Store(int64(time.Hour))
		pass(2*second - 1)
		require.True(t, p.Status().Up)
		pass(1)
		require.False(t, p.Status().Up)
		require.True(t, p.Status().OK, "no probe has failed yet")
		pass(10 * second)
		require.False(t, p.Status().Up)
		delay.Store(int64(3 * second / 2))
		pass(10 * second)
		for range 100 {
			require.True(t, p.Status().Up, "slow")
			pass(second / 10)
		}
	})
}

// The error of a probe that fails is the explained one, and an answer has none.
func TestFailuresAreExplained(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	down.Store(true)
	errExplained := errors.New("grant the role")
	m := &members{
		answer: func(context.Context, int) error {
			if down.Load() {
				return errRefused
			}
			return nil
		},
		explain: func(err error) error { return errors.Join(err, errExplained) },
	}
	probed(t, m, func(p *Probe) {
		pass(second * 3 / 2)
		require.ErrorIs(t, p.Status().Err, errExplained)
		require.ErrorIs(t, p.Status().Err, errRefused)
		down.Store(false)
		pass(3 * second)
		require.NoError(t, p.Status().Err)
		require.True(t, p.Status().OK)
	})
}
