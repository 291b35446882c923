package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestTimeAloneMovesALockThroughItsStates(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		require.Equal(t, protocol.Held, w.state("a"))
		w.pass(10*time.Second - 1)
		require.Equal(t, protocol.Held, w.state("a"))
		require.Zero(t, w.stats().OverdueTotal)
		w.pass(1)
		require.Equal(t, protocol.Overdue, w.state("a"))
		require.Equal(t, 1, w.stats().OverdueTotal)
		w.pass(10*time.Second - 1)
		require.Equal(t, protocol.Overdue, w.state("a"))
		w.pass(1)
		require.Equal(t, protocol.Expired, w.state("a"))
		require.Zero(t, w.stats().Backlog)
		w.pass(grace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, 1, w.stats().Backlog)
		require.Equal(t, []string{"a"}, w.taken())
		require.Equal(t, 1, w.stats().Backlog, "until it is gone")
	})
}

func TestDeadlineMovesBothWays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, 2*time.Minute)
		w.renew("a", time.Second, 2*time.Second)
		w.pass(2*time.Second + grace)
		require.Equal(t, 1, w.stats().Backlog)
		w.renew("a", time.Hour, 2*time.Hour)
		require.Equal(t, protocol.Held, w.state("a"))
		require.Zero(t, w.stats().Backlog)
		require.Zero(t, w.stats().OverdueTotal)
		require.Empty(t, w.taken())
		w.pass(2*time.Hour + grace)
		require.Equal(t, []string{"a"}, w.taken())
		require.Equal(t, counted{acquired: 1, renewed: 2}, w.counted())
	})
}

func TestReleaseCountsOnceAndMeasuresTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, 2*time.Minute)
		w.pass(7 * time.Second)
		w.release("a")
		require.Empty(t, w.names())
		require.Equal(t, counted{acquired: 1, released: 1}, w.counted())
		require.Equal(t, observed{7}, *w.held, "locked_at is deleted before the uuid in the same revision")
	})
}

func TestHoldOfALockWithoutLockedAtIsNotMeasured(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := fields(time.Minute, time.Minute)
		delete(f, "locked_at")
		w.live(w.put("a", f))
		w.release("a")
		require.Empty(t, *w.held)
		require.EqualValues(t, 1, w.counted().released)
	})
}

// A holder whose clock is ahead of ours has held its lock for no negative time.
func TestHoldOfAFastHolderIsNotNegative(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", holder(time.Hour).acquires(time.Hour)))
		w.release("a")
		require.Equal(t, observed{0}, *w.held)
	})
}

func TestReleaseAndReacquisitionInOneBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, 2*time.Second)
		w.pass(2*time.Second + grace)
		old := w.token("a")
		require.Equal(t, []string{"a"}, w.taken())
		w.live(append(w.del("a"), w.put("a", fields(time.Second, 2*time.Second))...))
		require.Len(t, w.gone(), 1)
		require.Equal(t, old, w.gone()[0].Token)
		require.Equal(t, old+1, w.gone()[0].Revision)
		require.Equal(t, protocol.Held, w.state("a"))
		require.Zero(t, w.stats().Backlog)
		require.Equal(t, counted{acquired: 2}, w.counted(), "Gone reports the release")
		w.pass(2*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken(), "the new one is due in its own time")
	})
}

func TestOrphanGraceRestartsWhenModified(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", map[string]string{"alert_at": at(time.Hour)}))
		require.Equal(t, protocol.Orphaned, w.state("a"))
		w.pass(orphanGrace - 1)
		w.live(w.put("a", map[string]string{"alert_at": at(time.Hour)}))
		w.pass(orphanGrace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		got := w.take()
		require.Len(t, got, 1)
		require.Zero(t, got[0].OrphanIn)
		w.release("a")
		require.Len(t, w.gone(), 1)
		require.Zero(t, w.gone()[0].Token)
		require.Equal(t, w.rev, w.gone()[0].Revision)
		require.Zero(t, w.counted().released, "an orphan is not a lock")
	})
}

// An orphan has no holder and no deadline: neither our wall clock nor an outage counts.
func TestOrphanGraceIsMonotonic(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.replay(w.put("a", deadline(-time.Hour)))
		require.Equal(t, orphanGrace, w.get("a").OrphanIn, "what the verdict on it waits for")
		w.clock(24 * time.Hour)
		w.outage(time.Minute)
		w.pass(orphanGrace - 1)
		require.EqualValues(t, 1, w.get("a").OrphanIn)
		require.Empty(t, w.taken())
		w.pass(1)
		got := w.take()
		require.Len(t, got, 1)
		require.Zero(t, got[0].OrphanIn)
	})
}

func TestOrphanRemovedAndReacquiredInOneBatchIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", map[string]string{"alert_at": at(time.Hour)}))
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.live(append(w.del("a"), w.put("a", fields(time.Hour, time.Hour))...))
		require.Len(t, w.gone(), 1)
		require.Equal(t, w.rev-1, w.gone()[0].Revision)
	})
}

// A lock taken over an orphan that Take returned, and is due itself, must not stay with
// whoever took the orphan.
func TestLockOverATakenOrphanIsTakenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", map[string]string{"alert_at": at(time.Hour)}))
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
		w.acquire("a", -time.Hour, -time.Hour)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", 0, 0)
		require.Empty(t, w.taken(), "the answer for the orphan does not count")
	})
}

func TestTakenLockThatIsOrphanedIsAnOrphanLikeAny(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, -time.Minute)
		require.Equal(t, []string{"a"}, w.taken())
		w.live(w.del("a", "uuid"))
		require.Len(t, w.gone(), 1)
		require.Zero(t, w.stats().Backlog)
		w.pass(orphanGrace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// One batch may move many locks within the index of those that are overdue.
func TestManyAlertsMoveInOneBatch(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		name := func(i int) string { return fmt.Sprintf("%02d", i) }
		for i := range 64 {
			w.acquire(name(i), -time.Duration(i+1)*time.Second, time.Hour)
		}
		var events []Event
		for i := range 64 {
			events = append(events, w.put(name(i), map[string]string{"alert_at": at(-time.Duration((i*37)%64+1) * time.Minute)})...)
		}
		w.live(events)
		require.Equal(t, 64, w.stats().OverdueTotal)
	})
}

func TestS8_UndatedAndMalformedAreNeverTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		undated := fields(time.Second, 0)
		delete(undated, "auto_unlock_at")
		w.live(w.put("undated", undated))
		bad := fields(time.Second, time.Second)
		bad["auto_unlock_at"] = "soon"
		w.live(w.put("bad", bad))
		millis := fields(time.Second, time.Second)
		millis["alert_at"] = fmt.Sprint(present().UnixMilli() * 1000)
		w.live(w.put("millis", millis))
		for _, key := range []string{"/x", "/y//z", "/"} { // invalid keys, as Split names them
			w.live(w.put(key, map[string]string{"": "v"}))
		}
		w.pass(48 * time.Hour)
		require.Empty(t, w.taken())
		require.Equal(t, never, w.dueAt("millis"))
		require.Equal(t, [protocol.NumStates]int{protocol.Undated: 1, protocol.Malformed: 5}, w.stats().Locks)
		require.Equal(t, 1, w.stats().OverdueTotal, "an undated lock has an alert all the same")
		w.live(w.put("bad", deadline(time.Second)))
		require.Equal(t, protocol.Overdue, w.state("bad"))
		w.pass(time.Second + grace)
		require.Equal(t, []string{"bad"}, w.taken())
	})
}

// Rule 1: what an earlier holder left behind, such as a deadline, is not the next one's.
func TestS8_LeftoverFieldsAreNotTheNextHolders(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 0, 0)
		w.live(append(w.del("a", "uuid", "hostname"), w.put("a", map[string]string{"uuid": "next"})...))
		require.Equal(t, protocol.Undated, w.state("a"))
		w.listing(true)
		w.pass(time.Hour)
		require.Empty(t, w.taken())
	})
}

func TestTenThousandMalformedKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var events []Event
		for i := range 10_000 {
			events = append(events, w.put(fmt.Sprintf("/%d", i), map[string]string{"": "v"})...)
		}
		w.live(events)
		require.Equal(t, [protocol.NumStates]int{protocol.Malformed: 10_000}, w.stats().Locks)
		require.Zero(t, w.core.pending.Len(), "none costs anything as time passes")
	})
}

// An alert after the deadline is a mistake of its holder and must not hide that the
// lock is past its time.
func TestAlertAfterTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Hour, time.Second)
		w.pass(time.Second)
		require.Equal(t, protocol.Expired, w.state("a"))
		require.Equal(t, 1, w.stats().OverdueTotal)
	})
}

func TestDeletedDeadlineIsNotARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Second, time.Minute)
		w.live(w.del("a", "auto_unlock_at"))
		require.Equal(t, protocol.Undated, w.state("a"))
		require.Zero(t, w.counted().renewed)
		w.release("a")
		require.Equal(t, counted{acquired: 1, released: 1}, w.counted())
	})
}

// The state of a suspended lock follows the clock like any other's.
func TestSuspendedLockFollowsTheWallClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.replay(w.put("a", fields(time.Second, 2*time.Second)))
		w.pass(2*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), UntilModified)
		w.clock(-time.Hour)
		require.Equal(t, protocol.Held, w.state("a"))
		w.pass(time.Hour)
		require.Equal(t, protocol.Expired, w.state("a"))
		require.Empty(t, w.taken())
	})
}

func TestLongestDueComesFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i, name := range []string{"c", "a", "b"} { // due before the table was made
			w.acquire(name, 0, -time.Hour+time.Duration(i)*time.Minute)
		}
		require.Equal(t, grace-time.Hour, w.due("c"))
		require.Equal(t, []string{"c", "a", "b"}, w.taken())
	})
}
