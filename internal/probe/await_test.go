package probe

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// A probe that began too early keeps no lock waiting for longer than until the next may begin, and its answer.
func TestS6_AwaitBeginsAProbeAsSoonAsOneMayBegin(t *testing.T) {
	t.Parallel()
	probed(t, &members{answer: func(context.Context, int) error { pass(10 * ms); return nil }}, func(p *Probe) {
		pass(second / 2)
		began := time.Now()
		p.Begin()
		pass(21 * ms) // the lock is due, the lead before it is after that probe
		require.NoError(t, p.Await(context.Background(), began.Add(11*ms)))
		require.Equal(t, minDistance+10*ms, time.Since(began))
	})
}

// Two probes that end an outage may be recorded in the other order than they were answered.
func TestS3_AnOutageIsWholeWhereTwoProbesEndIt(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
	p.begin(epoch)
	require.True(t, p.ended(after(7), after(7), after(10.5), nil, nil))
	p.ended(after(6.9), after(6.9), after(10), nil, nil)
	require.Equal(t, 10*second+second/2, p.outages.after(epoch))
	require.Equal(t, second/2, p.outages.after(after(10)))
}

// The answer or failure of an older probe that comes after the answer of a newer one takes nothing back.
func TestAnOlderProbeTakesNothingBack(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
	p.begin(epoch)
	require.False(t, p.ended(after(1), after(1), after(1.1), nil, nil))
	require.False(t, p.ended(epoch, epoch, after(1.2), nil, nil))
	require.Equal(t, after(1), p.Status().Good)
	require.False(t, p.ended(after(0.9), after(0.9), after(1.3), nil, errors.New("refused")))
	require.True(t, p.Status().OK)
	require.Zero(t, p.Status().Failed)
	require.False(t, p.ended(after(1.3), after(1.3), after(1.4), nil, errors.New("refused")))
	require.Equal(t, after(1.4), p.Status().Failed)
}

// However many wait, and without an answer, at most twenty begin in a second. None does before and after Run.
func TestAwaitBeginsFewProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		m := &members{answer: func(ctx context.Context, _ int) error {
			if down.Load() {
				return hangs(ctx)
			}
			return nil
		}}
		p, err := New(Options{Etcd: m, Members: 1, Interval: time.Hour, Timeout: 5 * second, Patience: 2 * second})
		require.NoError(t, err)
		p.Begin()
		synctest.Wait()
		require.Zero(t, m.asked.Load())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		pass(second)
		down.Store(true)
		asked := m.asked.Load()
		waiting, enough := context.WithTimeout(ctx, 2*second)
		defer enough()
		for range 10 {
			go func() { _ = p.Await(waiting, time.Now()) }()
		}
		require.ErrorIs(t, p.Await(waiting, time.Now()), context.DeadlineExceeded)
		require.LessOrEqual(t, m.asked.Load()-asked, int32(41), "twenty a second")
		cancel()
		require.NoError(t, <-done)
		asked = m.asked.Load()
		p.Begin()
		synctest.Wait()
		require.Equal(t, asked, m.asked.Load())
	})
}

// A probe of Begin fails no sooner than one of Run: after two refusals more than there are members.
func TestOneRefusalFailsNoProbe(t *testing.T) {
	t.Parallel()
	var refuse atomic.Int32
	probed(t, &members{answer: func(context.Context, int) error {
		if refuse.Add(-1) >= 0 {
			return errRefused
		}
		return nil
	}}, func(p *Probe) {
		for refused := range int32(3 + moreFailures + 1) {
			pass(second / 2)
			refuse.Store(refused)
			p.Begin()
			synctest.Wait()
			require.Equal(t, refused < 3+moreFailures, p.Status().Failed.IsZero(), refused)
			pass(second / 2)
		}
	})
}

// The probe before a removal begins as long before as the last one took: within limits, at which a fast etcd still
// answers in time, and a slow one does not leave the time for a renewal in between.
func TestLeadIsWhatTheLastProbeTook(t *testing.T) {
	t.Parallel()
	p := &Probe{Options: Options{Interval: second, Patience: 2 * second}}
	require.Equal(t, 10*ms, p.Lead(), "before any")
	p.begin(epoch)
	start := epoch
	for took, want := range map[time.Duration]time.Duration{
		ms: 10 * ms, 10 * ms: 10 * ms, 30 * ms: 30 * ms, 100 * ms: 100 * ms, 101 * ms: 100 * ms, second: 100 * ms,
	} {
		p.ended(start, start, start.Add(took), nil, nil)
		require.Equal(t, want, p.Lead(), took)
		start = start.Add(2 * second)
	}
}

// A lock that comes due as Run begins may send the first probe. Nothing was missed before it.
func TestAProbeOfBeginMayBeTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Options{Etcd: &members{answer: func(context.Context, int) error { return nil }}, Members: 3, Interval: second, Timeout: 5 * second, Patience: 2 * second})
		require.NoError(t, err)
		began := time.Now()
		p.run(t.Context())
		p.Begin()
		synctest.Wait()
		require.Equal(t, began, p.Good())
		require.Empty(t, p.outages)
	})
}

// A waiter is told once: answers that follow find none, and a later waiter waits for a new one.
func TestAwaitAgainAfterAnswersNobodyWaitedFor(t *testing.T) {
	t.Parallel()
	probed(t, &members{answer: func(context.Context, int) error { pass(10 * ms); return nil }}, func(p *Probe) {
		for range 2 {
			pass(second / 2)
			began := time.Now()
			require.NoError(t, p.Await(context.Background(), began))
			require.Equal(t, 10*ms, time.Since(began))
			pass(3 * second)
		}
	})
}
