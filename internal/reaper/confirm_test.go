package reaper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// A removal waits for a probe that began when its lock came due, but for the lead.
func TestS3_ARemovalWaitsForAProbe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var since atomic.Value
		answered := make(chan struct{})
		probe := allowing(new(atomic.Int64))
		probe.await = func(_ context.Context, s time.Time) error {
			since.Store(s)
			<-answered
			return nil
		}
		h := newHarness(t, nil, func(o *reaper.Options) { o.Probe = probe })
		h.start()
		<-time.After(time.Second) // the gate has opened before
		due := time.Now().Add(lead / 2)
		h.give(h.dated("a", due.Add(-grace)))
		<-time.After(time.Second)
		require.Positive(t, probe.begun.Load(), "together with the read")
		require.EqualValues(t, 1, h.reads.Load())
		require.WithinDuration(t, due.Add(-lead), since.Load().(time.Time), time.Millisecond)
		require.Empty(t, h.log.with(t, api.LogRemoving, ""))
		close(answered)
		h.handle()
		require.Equal(t, 1, h.removed())
	})
}

// Where no probe is answered, nothing is announced, and the lock is tried again.
func TestS3_NoRemovalWithoutAProbe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		probe := allowing(new(atomic.Int64))
		probe.await = func(ctx context.Context, _ time.Time) error {
			<-ctx.Done()
			return ctx.Err()
		}
		h := newHarness(t, nil, func(o *reaper.Options) { o.Probe = probe })
		h.expired("a")
		began := time.Now()
		h.handle(h.due("a"))
		require.InDelta(t, grace, time.Since(began), float64(lead))
		require.Zero(t, h.putBack())
		require.Zero(t, h.sent.Load())
		require.Empty(t, h.log.with(t, api.LogRemoving, ""))
	})
}

// The verdict is made again with what the probe has shown.
func TestS3_AProbeThatEndsAnOutageDelaysTheRemoval(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var allowance atomic.Int64
		probe := allowing(&allowance)
		probe.await = func(context.Context, time.Time) error {
			allowance.Store(int64(time.Hour))
			return nil
		}
		h := newHarness(t, nil, func(o *reaper.Options) { o.Probe = probe })
		h.handle(h.dated("a", time.Now().Add(-grace)))
		require.Equal(t, time.Second-lead, h.putBack(), "the table computes due again")
		require.Zero(t, h.sent.Load())
		require.Empty(t, h.log.with(t, api.LogRemoving, ""))
	})
}

// After a hold, the probe must have begun after its end, however long ago the lock came due. The first of two
// transactions takes long, and a hold comes and goes meanwhile.
func TestS3_AProbeFromBeforeTheEndOfAHoldDoesNotCount(t *testing.T) {
	var alarm atomic.Bool
	var good atomic.Int64
	began := time.Now()
	probe := allowing(new(atomic.Int64))
	probe.good = func() time.Time { return began.Add(time.Duration(good.Load())) }
	probe.await = func(context.Context, time.Time) error {
		good.Store(int64(time.Since(began)))
		return nil
	}
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Probe, o.Rules.Settle, o.Rules.BatchSize = probe, 0, unfit
		o.Signals = func() verdict.Signals {
			s := well()
			if alarm.Load() {
				s.Alarms = []string{"NOSPACE"}
			}
			return s
		}
	})
	held := func() bool { return len(h.Holding()) > 0 }
	h.before = func(context.Context) {
		if h.sent.Load() > 1 {
			return
		}
		alarm.Store(true)
		h.await(held)
		alarm.Store(false)
		h.await(func() bool { return !held() })
	}
	all := names("n%03d", unfit)
	h.expired(all...)
	h.remove(all...)
	require.Equal(t, unfit/2, h.removed())
	require.Len(t, h.log.with(t, api.LogWithdrawn, ""), unfit/2)
}

// A removal waits for a connection while a hold comes and goes, or etcd is restored.
func TestS3_ARemovalIsNotSentAfterAHoldThatItWaitedThrough(t *testing.T) {
	for _, restored := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			var alarms, history atomic.Int32
			h := newHarness(t, nil, func(o *reaper.Options) {
				o.Rules.Settle = 0
				o.Signals = func() verdict.Signals {
					s := well()
					s.Alarms, s.History = make([]string, alarms.Load()), int(history.Load())
					return s
				}
			})
			h.expired("a")
			h.connecting = func() {
				if restored {
					<-time.After(time.Second)
					history.Add(1)
					return
				}
				alarms.Store(1)
				h.await(func() bool { return len(h.Holding()) > 0 })
				alarms.Store(0)
				h.await(func() bool { return len(h.Holding()) == 0 })
			}
			h.handle(h.due("a"))
			require.Zero(t, h.removed())
			require.Len(t, h.log.with(t, api.LogWithdrawn, ""), 1)
		})
	}
}
