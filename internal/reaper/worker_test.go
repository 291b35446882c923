package reaper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Locks within the lead go each when it is due, in whatever order they were taken. No probe begins for others.
func TestS6_EachLockWithinTheLeadGoesAtDue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		probe := allowing(new(atomic.Int64))
		h := newHarness(t, nil, func(o *reaper.Options) { o.Probe = probe })
		start, sent := time.Now(), []time.Duration(nil)
		h.before = func(context.Context) { sent = append(sent, time.Since(start)) }
		h.handle(h.dated("early", start.Add(lead+time.Millisecond-grace)))
		require.Zero(t, probe.begun.Load())
		start = time.Now()
		due := func(name string, d time.Duration) table.View { return h.dated(name, start.Add(d-grace)) }
		h.give(due("c", lead), due("a", 3*time.Millisecond), due("b", 7*time.Millisecond))
		h.await(func() bool { return h.removed() == 3 })
		require.Equal(t, []time.Duration{3 * time.Millisecond, 7 * time.Millisecond, lead}, sent)
		require.Len(t, h.source.postponed(), 1)
		require.EqualValues(t, 1, probe.begun.Load())
	})
}

// A step of the wall clock, while locks within the lead are waited for, lets them not wait for longer than the lead.
func TestS6_AWaitIsNoLongerThanTheLead(t *testing.T) {
	for _, by := range []time.Duration{6 * time.Millisecond, lead} {
		bubble(t, func(t *testing.T) {
			var step, waits atomic.Int64
			h := newHarness(t, nil, func(o *reaper.Options) {
				o.Rules.ClockTolerance = 0
				o.Now = func() time.Time { return time.Now().Add(-time.Duration(step.Load())) }
				o.Sleep = func(ctx context.Context, d time.Duration) {
					waits.Add(1)
					sleep(ctx, d)
					step.Add(int64(by))
				}
			})
			h.handle(h.dated("a", time.Now().Add(6*time.Millisecond-grace)))
			require.EqualValues(t, 1, waits.Load())
			require.Equal(t, lead, h.putBack())
		})
	}
}

// Whoever stops leaves to another replica what is not due yet.
func TestRunEndsWhileWaitingForLocksWithinTheLead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.give(h.dated("a", time.Now().Add(lead-grace)))
		<-time.After(lead / 2)
		ending := time.Now()
		h.stop()
		require.Zero(t, time.Since(ending))
		require.Zero(t, h.sent.Load())
	})
}

// Each failure in a row makes the next batch wait for longer, and a success ends the row.
func TestABatchWaitsAfterOneThatFailed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var waited time.Duration
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Sleep = func(ctx context.Context, d time.Duration) {
				waited = d
				sleep(ctx, d)
			}
		})
		try := func(name string, err error) time.Duration {
			h.fails, waited = err, 0
			h.expired(name)
			h.handle(h.due(name))
			synctest.Wait() // after it was put back
			return waited
		}
		fails := status.Error(codes.Unavailable, "etcdserver: no leader")
		for range 6 {
			require.NotZero(t, try("a", fails))
		}
		require.Greater(t, try("a", fails), time.Second)
		require.Zero(t, try("b", nil))
		require.LessOrEqual(t, try("c", fails), 150*time.Millisecond)
	})
}

// Another history of etcd begins while a transaction is under way: what was taken in the one before is not sent.
func TestS3_EachTransactionIsOfOneHistory(t *testing.T) {
	var history atomic.Int64
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) {
		o.Rules.BatchSize = unfit
		o.Signals = func() verdict.Signals {
			s := well() // listed long ago, so that no hold is in force
			s.History = int(history.Load())
			return s
		}
	})
	all := names("n%03d", unfit)
	h.expired(all...)
	h.before = func(context.Context) { history.Store(1) }
	h.remove(all...)
	require.EqualValues(t, 1, h.sent.Load())
	require.Equal(t, unfit/2, h.removed())
	require.Len(t, h.log.with(t, api.LogWithdrawn, ""), unfit/2)
}

// A hold that begins after the last verdicts stops a transaction on its way. Others may take the locks once the hold is known.
func TestS3_ATransactionLooksAtDeparture(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var h *harness
		looks := 0
		h = newHarness(t, nil, func(o *reaper.Options) {
			o.Signals = func() verdict.Signals {
				s := well()
				if len(h.log.with(t, api.LogRemoving, "")) > 0 {
					looks++
					s.Overdue = looks > 1
				}
				return s
			}
		})
		h.expired("a")
		h.give(h.due("a"))
		<-time.After(updateInterval - time.Millisecond)
		require.Len(t, h.log.with(t, api.LogRemoving, ""), 1)
		require.Empty(t, h.source.postponed())
		<-time.After(2 * time.Millisecond)
		require.Len(t, h.source.postponed(), 1)
		require.Len(t, h.log.with(t, api.LogWithdrawn, ""), 1)
		require.Zero(t, h.sent.Load())
	})
}

// A hold that began and ended between the last verdicts and the departure counts, too: they did not know it.
func TestS3_AHoldBeforeDepartureRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var overdue atomic.Bool
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Rules.Settle = 0
			o.Signals = func() verdict.Signals {
				s := well()
				s.Overdue = overdue.Load()
				return s
			}
			o.Pauses = slowPauses(func() { // the last question before the verdicts
				overdue.Store(true)
				<-time.After(2 * updateInterval)
				overdue.Store(false)
				<-time.After(2 * updateInterval)
			})
		})
		h.expired("a")
		h.handle(h.due("a"))
		require.Zero(t, h.sent.Load())
		require.Len(t, h.log.with(t, api.LogWithdrawn, ""), 1)
	})
}

// slowPauses are none, and are asked slowly.
type slowPauses func()

func (slowPauses) For(string) verdict.Pause { return verdict.Pause{} }

func (p slowPauses) Newest() int64 {
	p()
	return 0
}

// A pause that the verdicts knew, and which does not concern the lock, refuses nothing.
func TestS3_APauseThatIsKnownRefusesNothing(t *testing.T) {
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Store.Pauses, o.Pauses = "/pauses of others/", pausesOfOthers(newest-1) })
	h.commit(clientv3.OpPut("/pauses of others/job", "{}"))
	h.expired("a")
	h.remove("a")
	require.Equal(t, 1, h.removed())
}

// What could not be removed is said once it would be tried: a dry run says what it would.
func TestADryRunTriesNothing(t *testing.T) {
	h := newHarness(t, sharedClient(t), func(o *reaper.Options) { o.Rules.Mode = verdict.DryRun })
	h.expired("a")
	h.crowd("a/n%04d/uuid", 1_200)
	h.crowd("a/n%04dx", 1_200)
	h.remove("a")
	require.EqualValues(t, 1, h.Stats().Would)
	require.Empty(t, h.failures())
}

// The table may know the newest write of an orphan by a key that was deleted since.
func TestS1_AnOrphanThatLostItsDeadlineIsRemoved(t *testing.T) {
	h := newHarness(t, sharedClient(t))
	h.set("a", "auto_unlock_at", expiry, "purpose", "test")
	written := h.due("a").Written
	h.commit(clientv3.OpDelete(h.direct.Layout.Key("a", "auto_unlock_at")))
	d := h.due("a")
	require.Less(t, d.Written, written)
	d.Written = written
	h.handle(d)
	require.Empty(t, h.keys())
}
