package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// waitingAgain are the ways of a lock that was given out back to waiting.
var waitingAgain = map[string]func(*world){
	"clock stepped back": func(w *world) { w.shift = -time.Hour; w.pass(0) },
	"renewed":            func(w *world) { w.renew("a", time.Hour, time.Hour) },
	"undated":            func(w *world) { w.apply(w.del("a", "auto_unlock_at"), true) },
	"renewed unseen":     func(w *world) { w.put("a", map[string]string{"auto_unlock_at": at(time.Hour)}); w.listing(false) },
}

// endings are the ways of a lock to vanish.
var endings = map[string]func(*world){
	"released":        func(w *world) { w.release("a") },
	"released unseen": func(w *world) { w.del("a"); w.listing(false) },
	"taken again":     func(w *world) { w.apply(append(w.del("a"), w.put("a", fields(time.Hour, time.Hour))...), true) },
	"orphaned":        func(w *world) { w.apply(w.del("a", "uuid"), true) },
	"forgotten":       func(w *world) { w.forget() },
}

// Whoever took a lock hears of its end once, unless it has answered before.
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
						w.acquire("a", 0, -time.Minute)
						require.Equal(t, []string{"a"}, w.taken())
						token := w.token("a")
						again(w)
						w.check()
						require.Zero(t, w.backlog)
						require.Equal(t, waiting, w.core.locks["a"].phase)
						if answered {
							w.postpone("a", token, 0)
							require.Equal(t, waiting, w.core.locks["a"].phase, "it is not due")
						}
						vanish(w)
						w.check()
						if answered {
							require.Empty(t, w.gone)
							return
						}
						require.Len(t, w.gone, 1)
						require.Equal(t, "a", w.gone[0].Name)
						require.Equal(t, token, w.gone[0].Token)
						require.Zero(t, w.totals.released, "Gone reports it")
						w.release("a")
						w.forget()
						require.Len(t, w.gone, 1)
					})
				})
			}
		}
	}
}

func TestPostponedLockThatVanishesIsNotReported(t *testing.T) {
	for name, delay := range map[string]time.Duration{"ready": 0, "retrying": time.Minute, "suspended": UntilModified} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.acquire("a", 0, -time.Minute)
				require.Equal(t, []string{"a"}, w.taken())
				w.postpone("a", w.token("a"), delay)
				w.check()
				w.release("a")
				require.Empty(t, w.gone)
				require.Equal(t, totals{acquired: 1, released: 1}, w.totals)
			})
		})
	}
}

// An orphan that changed while it was out waits again; the lock that comes over
// it was given to nobody.
func TestLockInPlaceOfATakenOrphanIsReleasedLikeAny(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", map[string]string{"alert_at": at(0)}), true)
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.apply(w.put("a", map[string]string{"alert_at": at(0)}), true)
		w.acquire("a", time.Hour, time.Hour)
		w.release("a")
		require.Empty(t, w.gone)
		require.Equal(t, totals{acquired: 1, released: 1}, w.totals)
	})
}

func TestRetryingLockWaitsForItsTurn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, -time.Minute)
		due := w.core.locks["a"].due
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), time.Minute)
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		w.shift = time.Hour
		w.pass(time.Minute - 1)
		require.Empty(t, w.taken())
		require.Equal(t, due, w.core.locks["a"].due)
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), time.Minute)
		w.renew("a", 0, -2*time.Hour)
		require.Equal(t, []string{"a"}, w.taken(), "another deadline has a turn of its own")
	})
}
