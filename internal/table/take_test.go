package table

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// within waits at most d for locks that are due, and takes them.
func (w *world) within(d time.Duration) []View {
	select {
	case <-w.Due():
	case <-time.After(d):
	}
	got, err := w.Take(w.ctx, 10)
	require.NoError(w.t, err)
	return got
}

func TestNewRefusesMissingOptions(t *testing.T) {
	for _, edit := range []func(*Options){
		func(o *Options) { o.Allowance = nil },
		func(o *Options) { o.Raw = nil },
		func(o *Options) { o.HoldDuration = nil },
		func(o *Options) { o.RenewalMargin = nil },
		func(o *Options) { o.Rules.OrphanGrace = 0 },
	} {
		o := Options{Allowance: (&outages{}).allowance, Raw: Raw(), HoldDuration: &observed{}, RenewalMargin: &observed{}}
		o.Rules.OrphanGrace = 1
		_, err := New(o)
		require.NoError(t, err)
		edit(&o)
		_, err = New(o)
		require.EqualError(t, err, "lock table: Allowance, Raw, HoldDuration, RenewalMargin and Rules.OrphanGrace are required")
	}
}

func TestTakeWaitsUntilDueAndReturnsALockOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, 5*time.Second)
		start := time.Now()
		got := w.within(time.Hour)
		require.Equal(t, 5*time.Second+grace, time.Since(start), "to the nanosecond")
		require.Len(t, got, 1)
		require.Equal(t, "a", got[0].Name)
		require.Zero(t, got[0].Attempts)
		require.Equal(t, time.Now(), got[0].At)
		require.Empty(t, w.within(time.Hour))
	})
}

// What Take returns comes by the lead before it is due, also where it was put back; an
// orphan does not.
func TestTakeReturnsLocksByTheLeadBeforeTheyAreDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, time.Minute)
		w.live(w.put("orphan", map[string]string{"alert_at": at(0)}))
		w.pass(time.Minute - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"orphan"}, w.taken())
		w.pass(grace - time.Second - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), 0)
		require.Equal(t, []string{"a"}, w.taken())
	}, func(o *Options) { o.Lead = func() time.Duration { return time.Second } })
}

func TestTakeReturnsTheObservation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("listed", fields(0, 0))
		w.listing(false)
		w.pass(time.Second)
		w.live(w.put("live", slow.acquires(90*time.Second)))
		w.pass(grace + 90*time.Second + time.Second)
		got := w.take()
		require.Len(t, got, 2)
		require.Equal(t, verdict.Observation{Late: true, Age: 94 * time.Second}, got[0].Observation)
		require.Equal(t, verdict.Observation{Measured: true, Offset: -90 * time.Second, Age: 93 * time.Second}, got[1].Observation)
	})
}

// A delay as long as a duration can be is none that has passed.
func TestS2_AnEndlessAllowanceDoesNotOverflow(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.pass(time.Second)
		w.acquire("a", 0, 0)
		w.pass(time.Hour)
		require.Empty(t, w.taken())
	}, func(o *Options) {
		o.Allowance = func(int64, time.Time, bool) (time.Duration, time.Duration) { return math.MaxInt64, math.MaxInt64 }
	})
}

func TestPostponeKeepsWhatTheCallerNotesUntilTheLockChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		token := w.token("a")
		for attempt := range 3 {
			got := w.within(time.Minute)
			require.Len(t, got, 1)
			require.Equal(t, attempt, got[0].Attempts)
			require.Equal(t, attempt > 0, got[0].Slow)
			got[0].Attempts, got[0].Slow = attempt+1, true
			w.answer(got[0], 10*time.Second)
			require.Empty(t, w.within(10*time.Second-1))
		}
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		require.Equal(t, 1, w.stats().Backlog, "due and still there")
		got := w.within(time.Minute)
		require.Zero(t, got[0].Attempts)
		require.True(t, got[0].Slow)
		w.answer(got[0], -time.Second)
		require.Len(t, w.within(0+1), 1, "a negative delay is none, but for UntilModified")
		w.live(w.put("a", deadline(time.Second)))
		w.postpone("a", token, 0)
		require.False(t, w.within(time.Minute)[0].Slow)
	})
}

// What was taken is taken once until it is answered for, whatever is computed again.
func TestTakenLockIsNotTakenAgain(t *testing.T) {
	for name, again := range map[string]func(*world){
		"reschedule":        func(w *world) { require.NoError(w.t, w.Reschedule(w.ctx)) },
		"step":              func(w *world) { w.clock(time.Hour) },
		"write":             func(w *world) { w.live(w.put("a", map[string]string{"purpose": "x"})) },
		"another past due":  func(w *world) { w.live(w.put("a", deadline(-time.Hour))) },
		"listing":           func(w *world) { w.put("a", map[string]string{"purpose": "x"}); w.listing(true) },
		"time":              func(w *world) { w.pass(time.Hour) },
		"small outage":      func(w *world) { w.pass(time.Minute); w.outage(time.Second) },
		"unfinished outage": func(w *world) { w.outageFrom(time.Now(), time.Hour); w.pass(time.Second); w.noOutage() },
		"renewal":           func(w *world) { w.live(w.put("a", deadline(time.Hour))); w.pass(2 * time.Hour) },
		"back and forth":    func(w *world) { w.put("a", deadline(time.Hour)); w.live(w.put("a", deadline(-time.Hour))) },
		"another's release": func(w *world) { w.acquire("b", time.Hour, time.Hour); w.release("b") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.pass(1)
				w.acquire("a", 0, -time.Minute)
				require.Equal(t, []string{"a"}, w.taken())
				again(w)
				require.Empty(t, w.taken())
				require.Equal(t, 1, w.stats().Backlog)
				w.postpone("a", w.token("a"), 0)
				require.Equal(t, []string{"a"}, w.taken())
			})
		})
	}
}

// An orphan may be removed in part, and is put back therefore. It is reported once it is gone, even so.
func TestAnOrphanThatWasRemovedIsPutBack(t *testing.T) {
	for name, left := range map[string]bool{"in part": true, "whole": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.live(w.put("a", map[string]string{"alert_at": at(0), "purpose": "x"}))
				w.pass(time.Hour)
				require.Equal(t, []string{"a"}, w.taken())
				if left {
					w.live(w.del("a", "alert_at"))
				}
				w.postpone("a", 0, 5*time.Second)
				if !left {
					w.live(w.del("a"))
					require.Len(t, w.gone(), 1)
				}
				w.pass(time.Hour)
				require.Equal(t, left, len(w.taken()) == 1)
			})
		})
	}
}

func TestAttemptsSaturate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, -time.Minute)
		for attempt := range 300 {
			got := w.take()
			require.Len(t, got, 1)
			require.Equal(t, min(attempt, 255), got[0].Attempts)
			got[0].Attempts++
			w.answer(got[0], 0)
		}
	})
}

func TestPostponeAfterAChangeIsIgnored(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		token := w.token("a")
		require.Len(t, w.within(time.Minute), 1)
		w.live(w.put("a", deadline(time.Second)))
		w.postpone("a", token, UntilModified)
		got := w.within(time.Minute)
		require.Len(t, got, 1)
		require.Zero(t, got[0].Attempts)
		w.live(w.put("a", deadline(time.Second)))
		w.pass(time.Minute) // it is due again by now
		w.postpone("a", token, UntilModified)
		require.Len(t, w.within(1), 1)
		w.postpone("a", token+99, UntilModified) // another's token
		w.postpone("b", token, UntilModified)    // another's name
		w.postpone("a", token, 0)
		require.Len(t, w.within(1), 1)
	})
}

func TestSuspendedUntilModified(t *testing.T) {
	for field, value := range map[string]func() string{
		"purpose":        func() string { return "x" },
		"auto_unlock_at": func() string { return at(0) },
	} {
		inBubble(t, func(t *testing.T, w *world) {
			w.acquire("a", 0, 0)
			require.Len(t, w.within(time.Minute), 1)
			w.postpone("a", w.token("a"), UntilModified)
			require.Empty(t, w.within(24*time.Hour))
			s := w.stats()
			require.Equal(t, 1, s.Backlog)
			require.Equal(t, 1, s.Locks[protocol.Expired])
			require.Equal(t, never, w.dueAt("a"))
			w.listing(true)
			w.clock(time.Hour)
			w.outage(0)
			require.Empty(t, w.taken(), "nothing was modified")
			w.live(w.put("a", map[string]string{field: value()}))
			require.Len(t, w.within(time.Minute), 1, field)
		})
	}
}

// What a policy keeps is due like any other, so that Take returns it, but it is not in the backlog.
func TestBacklogExcludesLocksThatAPolicyKeeps(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"a", "dry/b", "off/c"} {
			w.acquire(name, 0, 0)
		}
		w.pass(grace)
		require.Equal(t, 1, w.stats().Backlog, "ready")
		require.ElementsMatch(t, []string{"a", "dry/b", "off/c"}, w.taken())
		require.Equal(t, 1, w.stats().Backlog, "taken")
		for _, name := range []string{"dry/b", "off/c"} {
			w.postpone(name, w.token(name), UntilModified)
		}
		require.Equal(t, 1, w.stats().Backlog, "put back")
		w.renew("dry/b", time.Minute, time.Minute)
		w.release("off/c")
		require.Equal(t, 1, w.stats().Backlog)
		w.release("a")
		require.Zero(t, w.stats().Backlog)
	}, func(o *Options) {
		o.Rules.Policies = []verdict.Policy{{Match: "dry/*", Mode: verdict.DryRun, Grace: grace}, {Match: "off/*", Mode: verdict.Off, Grace: grace}}
	})
}

// A holder that renews a suspended lock, and then dies, does not keep it.
func TestSuspendedLockThatIsRenewedIsDueAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		require.Len(t, w.within(time.Minute), 1)
		w.postpone("a", w.token("a"), UntilModified)
		w.renew("a", time.Minute, time.Minute)
		require.Zero(t, w.stats().Backlog)
		require.Equal(t, time.Minute+grace, w.due("a"))
		w.pass(time.Minute + grace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

func TestGoneReportsOnceWithTokenAndRevision(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		token := w.token("a")
		require.Len(t, w.within(time.Minute), 1)
		was := w.core.locks["a"].Lock
		w.release("a")
		seen := present().UTC()
		w.postpone("a", token, 0) // too late
		require.Equal(t, []Gone{{Name: "a", Token: token, Revision: w.rev, At: seen, Whole: true, Past: &was}}, <-w.Gone())
		select {
		case again := <-w.Gone():
			require.Fail(t, "reported twice", again)
		case <-time.After(time.Minute):
		}
		require.Zero(t, w.stats().Released)
		require.Zero(t, w.stats().Backlog)
	})
}

func TestGoneIsKeptWhileNobodyReads(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		w.acquire("b", 0, 0)
		w.pass(grace)
		require.Len(t, w.take(), 2)
		w.live(append(w.del("a"), w.del("b")...))
		w.live(nil)
		require.Len(t, <-w.Gone(), 2)
	})
}

// It is signaled as long as locks are due, to whoever waits, and to nobody else.
func TestDueIsSignaledWhileLocksAreDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		signaled := func() bool {
			synctest.Wait()
			select {
			case <-w.Due():
				return true
			default:
				return false
			}
		}
		require.False(t, signaled())
		got, err := w.Take(w.ctx, 10)
		require.NoError(t, err)
		require.Empty(t, got, "it does not wait")
		w.acquire("a", 0, 0)
		w.acquire("b", 0, 0)
		w.pass(grace)
		for range 3 {
			require.True(t, signaled(), "who was told before may not have taken them")
		}
		got, err = w.Take(w.ctx, 1)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.True(t, signaled(), "the other one")
		require.Len(t, w.take(), 1)
		require.False(t, signaled())
		w.answer(got[0], time.Second)
		require.False(t, signaled())
		w.pass(time.Second)
		require.True(t, signaled())
	})
}

// A lock that comes due while a worker waits is taken in that instant, and none is lost where the
// wait ends then.
func TestAWaitThatEndsLosesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		for range 50 {
			got := append(w.within(grace), w.within(1)...)
			require.Len(t, got, 1)
			require.Zero(t, got[0].Attempts)
			w.live(w.put("a", deadline(0)))
			w.answer(got[0], 0)
		}
		require.Len(t, w.within(time.Minute), 1)
		require.Empty(t, w.within(1))
	})
}

func TestTakeRespectsTheLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"a", "b", "c"} {
			w.acquire(name, 0, -time.Minute)
		}
		got, err := w.Take(w.ctx, 2)
		require.NoError(t, err)
		require.Len(t, got, 2)
		require.Len(t, w.taken(), 1)
	})
}
