package table

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Rules 3 and 4: the holder's own clock decides, whether it is slow or fast.
func TestS2_TheHoldersOwnClockDecides(t *testing.T) {
	for clock, want := range map[holder]time.Duration{
		0: 0, holder(-tolerance): -2 * time.Second, holder(-tolerance - 1): 0, slow: 0, holder(-time.Hour): 0,
		holder(time.Minute): time.Minute, holder(time.Hour): time.Hour, // a fast holder hastens nothing
	} {
		inBubble(t, func(t *testing.T, w *world) {
			w.live(w.put("a", clock.acquires(10*time.Second)))
			require.Equal(t, 10*time.Second+grace+want, w.due("a"), "%s", time.Duration(clock))
		})
	}
}

// History A: after an outage, deadlines long past are the normal case: each gets its
// patience.
func TestS2_ADeadlineLongPastGetsItsPatience(t *testing.T) {
	t.Run("restart during an outage", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			// A lease of 60 s; etcd was away for 6.5 min.
			w.put("a", holder(-400*time.Second).acquires(time.Minute))
			w.put("a", holder(-390*time.Second).renews(time.Minute))
			w.listing(false)
			require.Equal(t, time.Minute+grace, w.due("a"))
			w.pass(20 * time.Second) // when it tries again
			require.Empty(t, w.taken())
			w.renew("a", time.Minute, time.Minute)
			require.Equal(t, time.Minute+grace, w.due("a"))
		})
	})
	t.Run("backup older than 5 minutes", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.live(w.put("a", holder(0).acquires(time.Minute)))
			backup := w.snapshot()
			w.pass(30 * time.Second)
			w.live(w.put("a", holder(0).renews(time.Minute)))
			w.pass(10 * time.Minute)
			require.NoError(t, w.Forget(w.ctx))
			w.etcd = backup
			w.listing(false)
			require.Equal(t, time.Minute+grace, w.due("a"))
		})
	})
	t.Run("our clock is fast, a client without alive_at", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.clock(7 * time.Minute)
			w.put("a", fields(time.Minute, time.Minute))
			w.listing(false)
			for range 60 { // observed live, every 20 s
				w.live(w.put("a", deadline(time.Minute)))
				require.Equal(t, 5*time.Minute+grace, w.due("a"))
				w.pass(20 * time.Second)
				require.Empty(t, w.taken())
			}
		})
	})
	t.Run("a slow holder, and a restart", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			late := holder(-7 * time.Minute)
			w.put("a", late.acquires(time.Minute))
			w.put("a", late.renews(time.Minute))
			w.listing(false)
			require.Equal(t, time.Minute+grace, w.due("a"))
			w.pass(20 * time.Second)
			w.live(w.put("a", late.renews(time.Minute)))
			require.Equal(t, time.Minute+grace, w.due("a"), "now its clock is known")
		})
	})
	t.Run("nobody shortens it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.put("a", holder(-365*day).acquires(time.Hour))
			w.listing(false)
			w.pass(5*time.Minute + grace - 1)
			require.Empty(t, w.taken())
			w.pass(1)
			require.Equal(t, []string{"a"}, w.taken(), "the price: five minutes after a restart")
		})
	})
}

// History D: a holder's clock was set back by 90 s since it was observed, and its next
// renewal is learned late: by its own clock it has 90 s longer than the observation says.
func TestS2_ALateRenewalMeansPatience(t *testing.T) {
	for name, learn := range map[string]func(*world, []Event){
		"replayed":    func(w *world, events []Event) { w.replay(events) },
		"by listing":  func(w *world, _ []Event) { w.listing(false) },
		"beside":      func(w *world, _ []Event) { w.listing(true) },
		"all at once": func(w *world, events []Event) { w.listing(true); w.replay(events) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.live(w.put("a", holder(0).acquires(time.Minute)))
				w.pass(20 * time.Second)
				learn(w, w.put("a", slow.renews(time.Minute)))
				w.requireOffset("a", 0)
				require.True(t, w.observation("a").Late)
				require.Equal(t, time.Minute+grace, w.due("a"))
				w.pass(20 * time.Second)
				w.live(w.put("a", slow.renews(time.Minute)))
				require.Equal(t, time.Minute+grace, w.due("a"), "by the holder's own clock")
			})
		})
	}
}

// An observation of before still delays a lock whose renewal was learned late.
func TestS2_AnEarlierObservationStillDelays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		late := holder(-time.Hour)
		w.live(w.put("a", late.acquires(time.Minute)))
		w.replay(w.put("a", late.renews(2*time.Minute)))
		require.Equal(t, 2*time.Minute+grace, w.due("a"))
	})
}

// Rule 6, and history E: an outage counts for what was written before it ended, however we learned of it. The
// patience of what is found after it is no longer for it.
func TestS3_AnOutageCountsForWhatWasWrittenBeforeItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"replayed", "listed", "live", "lagging", "untouched"} {
			w.live(w.put(name, fields(time.Minute, time.Minute)))
		}
		w.pass(12 * time.Second)
		before := w.put("replayed", deadline(time.Minute))
		w.put("listed", deadline(10*time.Minute))
		lagging := w.put("lagging", slow.renews(time.Minute))
		w.outage(8 * time.Second)
		w.replay(before)
		w.listing(true)
		w.live(lagging)
		w.live(w.put("live", holder(0).renews(time.Minute)))
		require.Equal(t, time.Minute-12*time.Second+grace+8*time.Second, w.due("untouched"))
		require.Equal(t, time.Minute+grace+8*time.Second, w.due("lagging"))
		require.Equal(t, time.Minute+grace, w.due("live"))
		require.Equal(t, 5*time.Minute+grace, w.due("replayed"), "its patience, and not the outage once more")
		require.Equal(t, 10*time.Minute+grace+8*time.Second, w.due("listed"), "its deadline is later, and gets it")
		w.live(w.put("untouched", map[string]string{"status": "x", "stack": "y", "answered_at": at(0)}))
		require.Equal(t, time.Minute-12*time.Second+grace+8*time.Second, w.due("untouched"), "which is no sign of life")
		w.pass(time.Second)
		w.outage(time.Second)
		require.Equal(t, 5*time.Minute+grace, w.due("replayed"), "one since then")
	})
}

// A holder that was asked answers: nothing that a verdict, a list or a metric says of the lock depends on that, neither at
// once nor later.
func TestS2_AnAnswerIsNoSignOfLife(t *testing.T) {
	for name, taken := range map[string]func(*world, string){
		"observed live": func(w *world, name string) {
			w.live(w.put(name, fields(time.Minute, 2*time.Minute)))
			for range 3 {
				w.pass(40 * time.Second)
				w.live(w.put(name, slow.renews(2*time.Minute)))
			}
		},
		"replayed": func(w *world, name string) { w.replay(w.put(name, fields(time.Minute, 2*time.Minute))) },
		"listed": func(w *world, name string) {
			w.put(name, fields(time.Minute, 2*time.Minute))
			w.listing(false)
		},
		"without a stamp": func(w *world, name string) {
			f := fields(time.Minute, 2*time.Minute)
			delete(f, "locked_at")
			w.live(w.put(name, f))
		},
		"dead": func(w *world, name string) { w.live(w.put(name, fields(-time.Hour, -time.Hour))) },
	} {
		t.Run(name, func(t *testing.T) {
			view := func(asked bool) (all []any) {
				inBubble(t, func(_ *testing.T, w *world) {
					taken(w, "a")
					for i := range 6 {
						w.pass(20 * time.Second)
						answer := map[string]string{"answered_at": at(0), "stack": "goroutine 1", "status": "x"}
						switch {
						case asked && i%2 == 0:
							w.live(w.put("a", answer))
						case asked:
							w.replay(w.put("a", answer))
						}
						v, s := w.get("a"), w.stats()
						all = append(all, w.dueAt("a"), v.Observation, v.Rhythm, v.Margin, v.State, v.Written, v.AliveAt(), v.AutoUnlockText(), v.Renewed(),
							s.Backlog, s.Locks, s.Renewed, s.Acquired, s.Clocks.Hosts, len(*w.margins))
					}
					w.listing(true)
					all = append(all, w.dueAt("a"), w.get("a").Observation)
				})
				return all
			}
			require.Equal(t, view(false), view(true))
		})
	}
}

// A renewal that carries no stamp may have waited for the end of the outage.
func TestS3_AnOutageCountsForAnUnstampedRenewalAfterItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"stamped", "unstamped", "late"} {
			w.live(w.put(name, fields(time.Minute, time.Minute)))
		}
		w.outage(8 * time.Second)
		w.live(w.put("stamped", holder(0).renews(time.Minute)))
		w.pass(requestTimeout - 1)
		w.live(w.put("unstamped", deadline(time.Minute)))
		require.Equal(t, time.Minute-requestTimeout+1+grace, w.due("stamped"))
		require.Equal(t, time.Minute+grace+8*time.Second, w.due("unstamped"))
		w.pass(1)
		w.live(w.put("late", deadline(time.Minute)))
		require.Equal(t, time.Minute+grace, w.due("late"))
	})
}

// Rule 6: what becomes known of an outage counts at once, also for locks that are due,
// taken, or put back.
func TestS3_AnOutageCountsForLocksThatAreDue(t *testing.T) {
	for name, was := range map[string]func(*world){
		"waiting":  func(*world) {},
		"ready":    func(w *world) { w.pass(3 * time.Second) },
		"taken":    func(w *world) { w.pass(3 * time.Second); w.taken() },
		"retrying": func(w *world) { w.pass(3 * time.Second); w.taken(); w.postpone("a", w.token("a"), time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				start := time.Now()
				w.acquire("a", 0, time.Second)
				was(w)
				w.outageFrom(start, time.Minute)
				require.Zero(t, w.stats().Backlog)
				w.pass(time.Until(start.Add(time.Minute+time.Second+grace)) - 1)
				require.Empty(t, w.taken())
				w.pass(1)
				w.postpone("a", w.token("a"), UntilModified) // by what was before the outage
				require.Equal(t, []string{"a"}, w.taken())
			})
		})
	}
}

// A lock that was put back during an outage waits for what that was assumed to last yet. When it has ended, the lock
// is due by what it lasted.
func TestS6_ALockPutBackDuringAnOutageIsDueWhenThatEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, time.Second)
		w.pass(3 * time.Second)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), time.Minute)
		w.pass(time.Second)
		w.outage(time.Second)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// While an outage is in progress its end is not known: the allowance grows, and nothing
// comes due by what it was when a lock was scheduled.
func TestS3_NothingComesDueDuringAnOutage(t *testing.T) {
	var from atomic.Pointer[time.Time]
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 10*time.Second)
		w.pass(5 * time.Second)
		now := time.Now()
		from.Store(&now) // the table asks when it wakes for the due
		w.pass(time.Hour)
		require.Zero(t, w.stats().Backlog)
		require.Empty(t, w.taken())
	}, func(o *Options) {
		o.Allowance = func(int64, time.Time, bool) (deadline, patience time.Duration) {
			if from := from.Load(); from != nil {
				return time.Since(*from) + time.Minute, time.Since(*from) + time.Minute
			}
			return 0, 0
		}
	})
}
