package table

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitingAgain are the ways of a lock that was taken back to waiting.
var waitingAgain = map[string]func(*world){
	"clock stepped back": func(w *world) { w.clock(-time.Hour) },
	"outage":             func(w *world) { w.outageFrom(time.Now(), time.Hour) },
	"renewed":            func(w *world) { w.renew("a", time.Hour, time.Hour) },
	"undated":            func(w *world) { w.live(w.del("a", "auto_unlock_at")) },
	"renewed unseen":     func(w *world) { w.put("a", deadline(time.Hour)); w.listing(false) },
}

// endings are the ways of a lock to vanish.
var endings = map[string]func(*world){
	"released":        func(w *world) { w.release("a") },
	"released unseen": func(w *world) { w.del("a"); w.listing(false) },
	"taken again":     func(w *world) { w.live(append(w.del("a"), w.put("a", fields(time.Hour, time.Hour))...)) },
	"orphaned":        func(w *world) { w.live(w.del("a", "uuid")) },
	"forgotten":       func(w *world) { require.NoError(w.t, w.Forget(w.ctx)) },
}

// Whoever took a lock hears of its end once. If it has answered before, it hears of it only if the
// lock was past its deadline.
func TestGoneIsReportedOnceWhileTheTakeIsUnanswered(t *testing.T) {
	for back, again := range waitingAgain {
		for end, vanish := range endings {
			for _, answered := range []bool{false, true} {
				name := back + ", " + end
				if answered {
					name += ", answered"
				}
				t.Run(name, func(t *testing.T) {
					inBubble(t, func(t *testing.T, w *world) {
						w.acquire("a", 0, -grace-time.Second)
						require.Equal(t, []string{"a"}, w.taken())
						token := w.token("a")
						again(w)
						require.Zero(t, w.stats().Backlog)
						if answered {
							w.postpone("a", token, 0)
							require.Zero(t, w.stats().Backlog, "it is not due")
						}
						vanish(w)
						past := (back == "outage" || back == "clock stepped back") && end != "forgotten"
						if answered && !past {
							require.Empty(t, w.gone())
							return
						}
						require.Len(t, w.gone(), 1)
						require.Equal(t, past, w.gone()[0].Past != nil)
						require.Equal(t, "a", w.gone()[0].Name)
						require.Equal(t, token, w.gone()[0].Token)
						require.Zero(t, w.counted().released, "Gone reports it")
						w.release("a")
						require.NoError(t, w.Forget(w.ctx))
						require.Len(t, w.gone(), 1)
					})
				})
			}
		}
	}
}

// A lock past its deadline is reported whoever deletes it, with what is known of it, and an orphan
// once it is due.
func TestGoneReportsWhatOthersDeletePastTheDeadline(t *testing.T) {
	for name, answer := range map[string]func(*world){
		"never taken": func(*world) {},
		"ready":       func(w *world) { w.taken(); w.postpone("a", w.token("a"), 0) },
		"retrying":    func(w *world) { w.taken(); w.postpone("a", w.token("a"), time.Minute) },
		"suspended":   func(w *world) { w.taken(); w.postpone("a", w.token("a"), UntilModified) },
	} {
		for how, vanish := range map[string]func(*world){
			"released": func(w *world) { w.release("a") },
			"listed":   func(w *world) { w.del("a"); w.listing(false) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					w.acquire("a", 0, -time.Minute)
					answer(w)
					was, token := w.core.locks["a"].Lock, w.token("a")
					vanish(w)
					rev := w.rev
					if how == "listed" {
						rev = 0
					}
					require.Equal(t, []Gone{{Name: "a", Token: token, Revision: rev, At: present().UTC(), Whole: how == "released", Past: &was}}, w.gone())
					require.Equal(t, counted{acquired: 1}, w.counted(), "Gone reports the release")
				})
			})
		}
	}
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, time.Second) // released in time
		w.release("a")
		w.acquire("b", 0, -time.Minute) // renewed and then released
		w.live(append(w.put("b", holder(0).renews(time.Minute)), w.del("b")...))
		w.live(w.put("d", holder(-time.Hour).takes(20*time.Second, time.Minute))) // in time by its holder's clock
		w.release("d")
		w.live(w.put("c", map[string]string{"alert_at": at(0)})) // an orphan that is not due
		w.live(w.del("c"))
		require.Empty(t, w.gone())
		w.live(w.put("c", map[string]string{"alert_at": at(0), "auto_unlock_at": at(0)}))
		w.pass(orphanGrace)
		w.live(w.del("c"))
		require.Len(t, w.gone(), 1)
		require.Equal(t, "c", w.gone()[0].Past.Name)
		require.Zero(t, w.gone()[0].Token)
	})
}

// An orphan that changed after Take had returned it waits again; the lock that is taken
// over it was returned to nobody.
func TestLockOverATakenOrphanIsReleasedLikeAny(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", map[string]string{"alert_at": at(0)}))
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.live(w.put("a", map[string]string{"alert_at": at(0)}))
		w.acquire("a", time.Hour, time.Hour)
		w.release("a")
		require.Empty(t, w.gone())
		require.Equal(t, counted{acquired: 1, released: 1}, w.counted())
	})
}

// What is left of a lock that Take had returned is an orphan like any.
func TestLeftoversOfATakenLockAreTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, -time.Minute)
		require.Equal(t, []string{"a"}, w.taken())
		w.live(w.del("a", "uuid"))
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// An orphan that waits again after Take had returned it is reported when it is gone, whatever comes with that.
func TestATakenOrphanIsGoneHoweverItsEndArrives(t *testing.T) {
	for _, together := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			w.live(w.put("a", map[string]string{"alert_at": at(0)}))
			w.pass(orphanGrace)
			require.Equal(t, []string{"a"}, w.taken())
			w.live(w.put("a", map[string]string{"alert_at": at(0)}))
			deleted := w.del("a")
			if !together {
				w.live(deleted)
				deleted = nil
			}
			w.live(append(deleted, w.put("a", fields(time.Hour, time.Hour))...))
			require.Len(t, w.gone(), 1)
			require.Nil(t, w.gone()[0].Past)
		})
	}
}

func TestRetryingLockWaitsForItsTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.pass(1)
		w.acquire("a", 0, -time.Minute)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), time.Minute)
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		w.clock(time.Hour)
		w.pass(time.Minute - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), time.Minute)
		w.renew("a", 0, -2*time.Hour)
		require.Equal(t, []string{"a"}, w.taken(), "another deadline has a turn of its own")
	})
}

// atOnce makes events those of one transaction.
func atOnce(parts ...[]Event) []Event {
	all := slices.Concat(parts...)
	for i := range all {
		all[i].KV.Mod = all[len(all)-1].KV.Mod
	}
	return all
}

// A lock that one transaction deletes, with others, is told from one of which something stays, or went before.
func TestS7_GoneSaysWhetherAllKeysVanishedAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		vanish func(*world) []Event
		whole  bool
	}{
		"alone":       {func(w *world) []Event { return w.del("a") }, true},
		"with others": {func(w *world) []Event { return atOnce(w.del("B"), w.del("a"), w.del("b")) }, true},
		"with others, one key stays": {func(w *world) []Event {
			return atOnce(w.del("B"), w.del("a", "uuid", "auto_unlock_at", "alert_at"), w.del("b"))
		}, false},
		"one key stays": {func(w *world) []Event { return w.del("a", "uuid", "auto_unlock_at", "alert_at") }, false},
		"one went before": {func(w *world) []Event {
			w.live(w.del("a", "alert_at"))
			return w.del("a", "uuid", "auto_unlock_at", "locked_at", "hostname")
		}, true},
		"one key is written": {func(w *world) []Event {
			return atOnce(w.del("a", "uuid", "auto_unlock_at", "locked_at", "alert_at"), w.put("a", map[string]string{"hostname": "x"}))
		}, false},
		"not seen": {func(w *world) []Event {
			w.del("a")
			w.put("a", fields(time.Hour, time.Hour))
			w.listing(false)
			return nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				for _, name := range []string{"B", "a", "b"} {
					w.acquire(name, 0, -time.Minute)
				}
				w.live(c.vanish(w))
				i := slices.IndexFunc(w.gone(), func(g Gone) bool { return g.Name == "a" })
				require.Equal(t, c.whole, w.gone()[i].Whole)
			})
		})
	}
}
