package scan

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

func TestS2_WhatWaitedForTheStreamIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		faults memetcd.Faults
		lasts  time.Duration
		live   bool
	}{
		"answers held for less than the tolerance": {memetcd.Faults{HoldAnswers: true}, tolerance / 4, true},
		"answers held for a little longer":         {memetcd.Faults{HoldAnswers: true}, tolerance * 5 / 4, false},
		"answers held for longer":                  {memetcd.Faults{HoldAnswers: true}, 8 * seconds, false},
		"nothing arrives for longer":               {memetcd.Unreachable(), 8 * seconds, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *bubbled) {
				w.acquire("before")
				w.live("before", true)
				w.link.Set(c.faults)
				for _, lock := range []string{"a", "b", "c", "d"} {
					w.acquire(lock)
				}
				pass(c.lasts)
				w.link.Set(memetcd.Faults{})
				pass(seconds)
				for _, lock := range []string{"a", "b", "c", "d"} {
					if c.live {
						require.False(t, w.observed(lock).Late)
					} else {
						w.live(lock, false)
					}
				}
				w.acquire("after")
				w.live("after", true)
				w.live("before", true)
				require.Empty(t, w.stats().Clocks.Skewed)
				require.Zero(t, w.stats().Drift)
				require.EqualValues(t, 1, w.listings.Load(), "the same stream: the locks need no listing")
				for reason, n := range w.Status().Restarts {
					require.Zero(t, n, reason)
				}
			})
		})
	}
}

// As after SIGSTOP: the responses wait in the process, progress notices among them.
func TestS2_WhatWaitedForTheProcessIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		stops time.Duration
		live  bool
	}{"less than the tolerance": {tolerance - seconds/2, true}, "longer": {8 * seconds, false}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *bubbled) {
				w.block.Store(int64(c.stops))
				w.acquire("stops")
				for i := range 4 {
					pass(c.stops / 5)
					w.acquire(fmt.Sprint(i))
				}
				pass(c.stops/5 + seconds)
				w.live("stops", true)
				for i := range 4 {
					require.Equal(t, !c.live, w.observed(fmt.Sprint(i)).Late, i)
					require.Equal(t, c.live, w.observed(fmt.Sprint(i)).Measured, i)
				}
				w.acquire("after")
				w.live("after", true)
			})
		})
	}
}

// The client library opens another stream within the tolerance.
func TestS2_WhatWaitedForAnotherStreamIsLate(t *testing.T) {
	bubble(t, func(w *bubbled) {
		w.acquire("before")
		w.live("before", true)
		w.link.Set(memetcd.Faults{Refuse: true})
		w.acquire("meanwhile")
		pass(tolerance / 4)
		w.link.Set(memetcd.Faults{})
		pass(seconds)
		w.live("meanwhile", false)
		w.acquire("after")
		w.live("after", true)
		w.live("before", true)
		require.Zero(t, w.Status().Restarts[etcd.Unavailable]+w.Status().Restarts[etcd.Ended], "the library did it by itself")
		require.EqualValues(t, 2, w.listings.Load())
		require.Positive(t, w.checks.Load())
		w.link.Set(memetcd.Faults{HoldAnswers: true})
		pass(8 * seconds)
		w.link.Set(memetcd.Faults{})
		pass(seconds)
		require.EqualValues(t, 2, w.listings.Load(), "the locks were listed since that stream was opened")
	})
}

// A gap counts where it is longer than the tolerance, or where another stream was opened in it.
func TestS2_WhatFollowsAGapIsLate(t *testing.T) {
	t.Parallel()
	w := newScanner(t, client(t, "127.0.0.1:1")).watch(1)
	stalled := func() bool {
		select {
		case <-w.resumed:
			require.GreaterOrEqual(t, w.liveAfter.Load(), int64(notLive))
			w.live(w.liveAfter.Load(), 5)
			return true
		default:
			return false
		}
	}
	now := time.Now()
	w.arrived(now)
	require.True(t, stalled(), "nothing arrived before")
	now = now.Add(w.Tolerance)
	w.arrived(now)
	require.False(t, stalled())
	now = now.Add(w.Tolerance + 1)
	w.arrived(now)
	require.True(t, stalled())
	require.NoError(t, w.opens(1))
	require.False(t, stalled(), "the first stream")
	require.NoError(t, w.opens(2))
	require.True(t, stalled(), "before anything arrives on it")
	w.arrived(now)
	require.True(t, stalled(), "on it for the first time")
	w.arrived(now)
	require.False(t, stalled())
}

func TestProgressIsAskedForWithinFreshnessAndTolerance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ freshness, tolerance, want time.Duration }{
		{80 * time.Second, 2 * time.Second, time.Second}, {8 * time.Second, 6 * time.Second, 2 * time.Second},
	} {
		w := newScanner(t, client(t, "127.0.0.1:1"), func(o *Options) { o.Freshness, o.Tolerance = c.freshness, c.tolerance }).watch(1)
		require.Equal(t, 100*time.Millisecond, w.progressInterval(), "not known to be current")
		w.live(w.liveAfter.Load(), 5)
		require.Equal(t, c.want, w.progressInterval())
	}
}

// Another stream was opened, and has shown something: the check before the listing is answered too slowly, which ends the
// watch.
func TestS2_ACheckThatFailsEndsTheWatch(t *testing.T) {
	bubble(t, func(w *bubbled) {
		var checks atomic.Int32
		w.link.OnRequest(func(req memetcd.Message) memetcd.Faults {
			if r, read := req.(*etcdserverpb.RangeRequest); read && r.Revision == 0 && checks.Add(1) == 2 {
				return memetcd.Faults{Request: 2 * timeout}
			}
			return memetcd.Faults{}
		})
		w.link.Break()
		pass(seconds)
		w.acquire("a")
		pass(timeout + 5*seconds)
		w.failures(etcd.Timeout)
		w.status(true)
	})
}

// Progress is asked for so often that an idle watch stays known to be current, and is not
// checked again and again.
func TestS2_AnIdleWatchStaysLive(t *testing.T) {
	bubble(t, func(w *bubbled) {
		checks := w.checks.Load()
		for i := range 40 {
			name := fmt.Sprint(i)
			pass(time.Minute + time.Duration(i)*tolerance/13)
			w.acquire(name)
			w.live(name, true)
		}
		require.Equal(t, checks, w.checks.Load())
		require.EqualValues(t, 1, w.listings.Load())
	})
}

// A watch that begins shows nothing live before a revision was read.
func TestS2_NothingIsLiveBeforeTheFirstCheck(t *testing.T) {
	bubble(t, func(w *bubbled) {
		w.link.Set(memetcd.Unreachable())
		pass(30 * seconds) // another session
		w.link.Set(memetcd.Faults{})
		w.acquire("a") // in flight while the locks are listed
		pass(15 * seconds)
		w.live("a", false)
		w.acquire("b")
		w.live("b", true)
	})
}

func TestTheTableMayBlockWhileTheWatchIsChecked(t *testing.T) {
	bubble(t, func(w *bubbled) {
		for range 20 {
			w.link.Break()
			w.acquire("a")
			pass(tolerance / 20)
		}
		synctest.Wait()
		pass(seconds)
		w.inLine()
		w.acquire("b")
		w.live("b", true)
		require.LessOrEqual(t, w.listings.Load(), int32(21))
	})
}
