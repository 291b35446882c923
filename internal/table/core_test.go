package table

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// inBubble runs f with time that passes only where everybody waits.
func inBubble(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		f(t, w)
		w.check()
	})
}

func TestTimeAloneMovesALockThroughItsStates(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		require.Equal(t, lock.Held, w.state("a"))
		w.pass(10*time.Second - 1)
		require.Equal(t, lock.Held, w.state("a"))
		require.Zero(t, w.overdue.Len())
		w.pass(1)
		require.Equal(t, lock.Overdue, w.state("a"))
		require.Equal(t, 1, w.overdue.Len())
		w.pass(10*time.Second - 1)
		require.Equal(t, lock.Overdue, w.state("a"))
		w.pass(1)
		require.Equal(t, lock.Expired, w.state("a"))
		require.Zero(t, w.backlog)
		w.pass(grace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, 1, w.backlog)
		require.Equal(t, []string{"a"}, w.taken())
		require.Equal(t, 1, w.backlog, "until it is gone")
	})
}

func TestDeadlineMovesBothWays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, 2*time.Minute)
		w.renew("a", time.Second, 2*time.Second)
		w.pass(2*time.Second + grace)
		require.Equal(t, 1, w.ready.Len())
		w.renew("a", time.Hour, 2*time.Hour)
		require.Equal(t, lock.Held, w.state("a"))
		require.Zero(t, w.backlog)
		require.Zero(t, w.overdue.Len())
		require.Empty(t, w.taken())
		w.pass(2*time.Hour + grace)
		require.Equal(t, []string{"a"}, w.taken())
		require.Equal(t, totals{acquired: 1, renewed: 2}, w.totals)
	})
}

func TestReleaseCountsOnceAndMeasuresTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, 2*time.Minute)
		w.pass(7 * time.Second)
		w.release("a")
		require.Empty(t, w.core.locks)
		require.Equal(t, totals{acquired: 1, released: 1}, w.totals)
		require.Equal(t, []float64{7}, w.hold.seconds, "locked_at goes before the uuid in the same revision")
	})
}

func TestReleaseAndReacquisitionInOneBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, 2*time.Second)
		w.pass(2*time.Second + grace)
		old := w.token("a")
		require.Equal(t, []string{"a"}, w.taken())
		events := append(w.del("a"), w.put("a", fields(time.Second, 2*time.Second))...)
		w.apply(events, true)
		w.check()
		require.Len(t, w.gone, 1)
		require.Equal(t, old, w.gone[0].Token)
		require.Equal(t, old+1, w.gone[0].Revision)
		require.Equal(t, lock.Held, w.state("a"))
		require.Zero(t, w.backlog)
		require.Equal(t, totals{acquired: 2}, w.totals, "Gone reports the release")
		w.pass(2*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken(), "the new one is due in its own time")
	})
}

func TestOrphanGraceRestartsWhenModified(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", map[string]string{"alert_at": at(time.Hour)}), true)
		require.Equal(t, lock.Orphaned, w.state("a"))
		w.pass(orphanGrace - 1)
		w.apply(w.put("a", map[string]string{"alert_at": at(time.Hour)}), true)
		w.pass(orphanGrace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
		w.release("a")
		require.Len(t, w.gone, 1)
		require.Zero(t, w.gone[0].Token)
		require.Equal(t, w.rev, w.gone[0].Revision)
		require.Zero(t, w.totals.released, "an orphan is no lock")
	})
}

func TestOrphanRemovedAndReacquiredInOneBatchIsReportedGone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", map[string]string{"alert_at": at(time.Hour)}), true)
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.apply(append(w.del("a"), w.put("a", fields(time.Hour, time.Hour))...), true)
		w.check()
		require.Len(t, w.gone, 1)
		require.Equal(t, w.rev-1, w.gone[0].Revision)
	})
}

// A lock that comes over an orphan that was given out, and is due itself, must
// not stay with whoever took the orphan.
func TestLockInPlaceOfATakenOrphanIsTakenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", map[string]string{"alert_at": at(time.Hour)}), true)
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.acquire("a", -time.Hour, -time.Hour)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", 0, 0)
		require.Zero(t, w.ready.Len(), "the orphan's taker has no say")
	})
}

func TestUndatedAndMalformedAreNeverTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		undated := fields(time.Second, 0)
		delete(undated, "auto_unlock_at")
		w.apply(w.put("undated", undated), true)
		bad := fields(time.Second, time.Second)
		bad["auto_unlock_at"] = "soon"
		w.apply(w.put("bad", bad), true)
		millis := fields(time.Second, time.Second)
		millis["alert_at"] = fmt.Sprint(present().UnixMilli() * 1000)
		w.apply(w.put("millis", millis), true)
		for _, key := range []string{"/x", "/y//z", "/"} { // invalid keys, as Split names them
			w.apply(w.put(key, map[string]string{"": "v"}), true)
		}
		w.pass(30 * 24 * time.Hour)
		require.Empty(t, w.taken())
		require.Equal(t, [lock.NumStates]int{lock.Undated: 1, lock.Malformed: 5}, w.counts)
		require.Equal(t, 1, w.overdue.Len(), "an undated lock has an alert all the same")
		w.apply(w.put("bad", map[string]string{"auto_unlock_at": at(time.Second)}), true)
		require.Equal(t, lock.Overdue, w.state("bad"))
		w.pass(time.Second + grace)
		require.Equal(t, []string{"bad"}, w.taken())
	})
}

func TestTenThousandMalformedKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var events []Event
		for i := range 10_000 {
			events = append(events, w.put(fmt.Sprintf("/%d", i), map[string]string{"": "v"})...)
		}
		w.apply(events, true)
		require.Equal(t, [lock.NumStates]int{lock.Malformed: 10_000}, w.counts)
		require.Zero(t, w.pending.Len(), "none costs anything as time passes")
	})
}

// An alert after the deadline is a mistake of the holder and must not hide that
// the lock is past its time.
func TestAlertAfterTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Hour, time.Second)
		w.pass(time.Second)
		require.Equal(t, lock.Expired, w.state("a"))
		require.Equal(t, 1, w.overdue.Len())
	})
}

func TestDeletedDeadlineIsNotARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, time.Minute)
		w.apply(w.del("a", "auto_unlock_at"), true)
		require.Equal(t, lock.Undated, w.state("a"))
		require.Zero(t, w.totals.renewed)
		w.release("a")
		require.Equal(t, totals{acquired: 1, released: 1}, w.totals)
	})
}

func TestWallClockStepsForward(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		w.pass(time.Second)
		w.shift = time.Hour
		w.pass(0)
		require.Equal(t, lock.Expired, w.state("a"), "states follow the wall clock")
		require.Empty(t, w.taken(), "the old instant is later and stands")
		w.pass(19*time.Second + grace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

func TestWallClockStepsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		w.acquire("ready", 0, -grace)
		w.acquire("taken", 0, -grace-1)
		require.Equal(t, "taken", w.take(1).Due[0].Name)
		w.pass(time.Second)
		w.shift = -time.Hour
		w.pass(0)
		require.Equal(t, [lock.NumStates]int{lock.Held: 3}, w.counts)
		require.Zero(t, w.overdue.Len())
		require.Empty(t, w.taken(), "the new instant is later and stands")
		w.pass(time.Hour - time.Second - 2)
		require.Empty(t, w.taken())
		w.pass(time.Second)
		require.ElementsMatch(t, []string{"taken", "ready"}, w.taken())
		w.pass(20*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// The state of a suspended lock follows the clock like any other's.
func TestSuspendedLockFollowsTheWallClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, 2*time.Second)
		w.pass(2*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), UntilModified)
		w.check()
		w.shift = -time.Hour
		w.pass(0)
		require.Equal(t, lock.Held, w.state("a"))
		w.pass(time.Hour)
		require.Equal(t, lock.Expired, w.state("a"))
		require.Empty(t, w.taken())
	})
}

func TestLongestDueComesFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i, name := range []string{"c", "a", "b"} { // due before the table was made
			w.acquire(name, 0, -time.Hour+time.Duration(i)*time.Minute)
		}
		item := w.item(w.core.locks["c"], w.now())
		require.Equal(t, present().Add(grace-time.Hour).UTC(), item.Due)
		require.Equal(t, []string{"c", "a", "b"}, w.taken())
	})
}
