package table

import (
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
						if answered {
							require.Empty(t, w.gone())
							return
						}
						require.Len(t, w.gone(), 1)
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

func TestGoneIsNotReportedAfterPostpone(t *testing.T) {
	for name, delay := range map[string]time.Duration{"ready": 0, "retrying": time.Minute, "suspended": UntilModified} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.acquire("a", 0, -time.Minute)
				require.Equal(t, []string{"a"}, w.taken())
				w.postpone("a", w.token("a"), delay)
				w.release("a")
				require.Empty(t, w.gone())
				require.Equal(t, counted{acquired: 1, released: 1}, w.counted())
			})
		})
	}
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
