package scan

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
				require.LessOrEqual(t, w.stats().Clocks.Median.Abs(), tolerance)
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

// What is learned late was current when the watch last showed that it was, whether a
// replay or a listing brings it.
func TestS3_LateKnowledgeCountsFromTheLastSignOfLifeBefore(t *testing.T) {
	known := func(t *testing.T, lasts time.Duration, faults memetcd.Faults) (before, at time.Time) {
		bubble(t, func(w *bubbled) {
			before = time.Now()
			w.link.Set(faults)
			w.acquire("a")
			pass(lasts)
			w.link.Set(memetcd.Faults{})
			pass(15 * seconds)
			w.live("a", false)
			at = time.Now().Add(-w.observed("a").Stale)
		})
		return before, at
	}
	for name, c := range map[string]struct {
		lasts  time.Duration
		faults memetcd.Faults
	}{
		"replayed on the same stream": {8 * seconds, memetcd.Unreachable()},
		"replayed on another stream":  {seconds / 2, memetcd.Faults{Refuse: true}},
		"listed":                      {time.Minute, memetcd.Unreachable()},
		"listed after many sessions":  {10 * time.Minute, memetcd.Faults{Refuse: true}},
	} {
		t.Run(name, func(t *testing.T) {
			before, at := known(t, c.lasts, c.faults)
			require.WithinRange(t, at, before.Add(-2*seconds), before)
		})
	}
}

// Two stalls in a row: what the first brought late is no sign of life for the second.
func TestS3_LateKnowledgeIsNoSignOfLife(t *testing.T) {
	bubble(t, func(w *bubbled) {
		before := time.Now()
		w.link.Set(memetcd.Unreachable())
		pass(8 * seconds)
		w.slow.Store(int64(timeout / 2)) // the check that makes the watch live again
		w.link.Set(memetcd.Faults{})
		pass(timeout / 4)
		w.acquire("a")
		w.live("a", false)
		require.WithinRange(t, time.Now().Add(-w.observed("a").Stale), before.Add(-2*seconds), before)
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
