package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

func TestFirstListingCountsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(time.Minute, time.Minute))
		w.put("b", fields(-time.Minute, -time.Minute))
		w.listing(false)
		require.Zero(t, w.totals)
		require.Equal(t, []string{"b"}, w.taken())
	})
}

func TestListingAfterAnInterruptedWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"gone", "taken-gone", "again", "kept"} {
			w.put(name, fields(time.Minute, time.Minute))
		}
		w.put("taken-gone", map[string]string{"auto_unlock_at": at(-time.Minute)})
		w.put("orphan", map[string]string{"alert_at": at(0)})
		w.listing(false)
		token := w.token("taken-gone")
		w.pass(2 * time.Second)
		require.Equal(t, []string{"taken-gone"}, w.taken())

		w.del("gone")
		w.del("taken-gone")
		w.del("again")
		w.put("again", fields(time.Minute, time.Minute))
		w.put("new", fields(time.Minute, time.Minute))
		w.del("orphan")
		w.listing(false)
		require.Equal(t, totals{acquired: 2, released: 2}, w.totals, "no drift without a watch")
		require.Equal(t, []Gone{{Name: "taken-gone", Token: token, At: w.gone[0].At}}, w.gone)
		require.ElementsMatch(t, []float64{2, 2, 2}, w.hold.seconds)
		w.listing(false)
		require.Equal(t, totals{acquired: 2, released: 2}, w.totals)
	})
}

func TestTakenOrphanDeletedWithoutAWatch(t *testing.T) {
	for name, after := range map[string]func(*world){
		"vanished": func(w *world) { w.del("a") },
		"replaced": func(w *world) { w.del("a"); w.put("a", fields(time.Hour, time.Hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.put("a", map[string]string{"alert_at": at(0)})
				w.listing(false)
				w.pass(orphanGrace)
				require.Equal(t, []string{"a"}, w.taken())
				after(w)
				w.listing(false)
				require.Equal(t, []Gone{{Name: "a", At: w.gone[0].At}}, w.gone)
			})
		})
	}
}

func TestEventsUpToTheListingAreDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		events := w.put("a", fields(time.Minute, time.Minute))
		events = append(events, w.put("b", fields(time.Minute, time.Minute))...)
		events = append(events, w.del("b")...)
		w.listing(false)
		w.apply(events, true) // a watch from R replays R
		w.check()
		require.Zero(t, w.totals)
		require.Len(t, w.core.locks, 1)
		require.EqualValues(t, 5, w.core.locks["a"].Keys)
	})
}

func TestDriftCountsOnlyDuringAWatch(t *testing.T) {
	for _, resync := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			w.put("a", fields(time.Minute, time.Minute))
			w.put("b", fields(time.Minute, time.Minute))
			w.put("c", fields(time.Minute, time.Minute))
			w.listing(false)
			w.del("a")                                                         // its events are lost
			w.put("b", map[string]string{"auto_unlock_at": at(2 * time.Hour)}) // likewise
			w.put("d", fields(time.Minute, time.Minute))                       // likewise
			w.listing(resync)
			if resync {
				require.EqualValues(t, 3, w.totals.drift)
			} else {
				require.Zero(t, w.totals.drift)
			}
			require.Equal(t, lock.TimestampOf(present().Add(2*time.Hour)), w.core.locks["b"].AutoUnlockAt())
			drift := w.totals.drift
			w.listing(true)
			require.Equal(t, drift, w.totals.drift, "put right once")
		})
	}
}

// While a listing is under way beside a watch, locks come, go and change.
func TestEventsDuringAListing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"deleted", "again", "renewed", "listed-then-deleted", "kept"} {
			w.acquire(name, time.Minute, time.Minute)
		}
		w.begin(w.rev, true)
		seen := w.collect()
		w.release("deleted")
		w.release("again")
		w.acquire("again", time.Hour, time.Hour)
		w.renew("renewed", time.Hour, time.Hour)
		w.acquire("new", time.Minute, time.Minute)
		w.list(seen)
		w.release("listed-then-deleted")
		w.end()
		w.check()
		require.Equal(t, totals{acquired: 7, renewed: 1, released: 3}, w.totals)
		require.Len(t, w.core.locks, 4)
		require.Equal(t, w.token("again"), w.core.locks["again"].Token)
		w.listing(true)
		require.Zero(t, w.totals.drift)
	})
}

// A listing that was broken off leaves no marks that the next one believes.
func TestBrokenListing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(time.Minute, time.Minute))
		w.listing(false)
		for range 300 {
			w.begin(w.rev, false)
			w.list(w.collect())
		}
		w.del("a")
		w.listing(false)
		require.Empty(t, w.core.locks)
		require.EqualValues(t, 1, w.totals.released)
	})
}

func TestForgetDropsEverything(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", -time.Minute, -time.Minute)
		w.acquire("b", time.Minute, time.Minute)
		require.Equal(t, []string{"a"}, w.taken())
		token := w.token("a")
		w.forget()
		w.check()
		require.Empty(t, w.core.locks)
		require.Equal(t, []Gone{{Name: "a", Token: token, At: w.gone[0].At}}, w.gone)
		before := w.totals
		w.etcd = newEtcd() // of a lower revision
		w.etcd.rev = 0
		w.put("c", fields(time.Minute, time.Minute))
		w.listing(false)
		require.Equal(t, before, w.totals)
		require.Len(t, w.core.locks, 1)
		w.acquire("d", time.Minute, time.Minute)
		require.Equal(t, before.acquired+1, w.totals.acquired)
	})
}
