package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const day = 24 * time.Hour

// Rule 3: a holder's own clock is known by our monotonic clock, whatever our wall clock
// does, in steps or by little.
func TestS2_OurWallClockDoesNotMoveTheHoldersClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(time.Minute)))
		w.replay(w.put("late", slow.acquires(time.Minute)))
		w.clock(time.Hour)
		w.requireOffset("a", -90*time.Second-time.Hour)
		w.clock(-time.Minute)
		w.requireOffset("a", -30*time.Second)
		require.False(t, w.observation("late").Measured)
		w.clock(-time.Minute + tolerance) // not a step
		w.requireOffset("a", -30*time.Second-tolerance)
		w.live(w.put("new", fields(time.Hour, time.Hour)))
		w.clock(-time.Minute)
		require.Zero(t, w.observation("new").NotBefore)
		for _, ahead := range []time.Duration{-day, 0, time.Hour, -time.Minute, 30 * day} {
			w.clock(ahead)
			require.GreaterOrEqual(t, w.due("a"), time.Minute+grace, "our clock is %s ahead", ahead)
		}
	})
}

// Rule 7: a step forward hastens nobody whose clock was observed.
func TestS2_AStepForwardDoesNotHasten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		w.pass(time.Second)
		w.clock(time.Hour)
		require.Equal(t, protocol.Held, w.state("a"), "states follow the holder's clock")
		w.pass(19*time.Second + grace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// Rule 7: a lock of which no clock was observed comes due earlier by a step, but not
// before its old due, and not without its patience.
func TestS2_AfterAStepForwardALockGetsItsPatience(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("patience first", fields(0, time.Minute)) // of a minute
		w.listing(false)
		w.put("old due first", deadline(90*time.Second)) // no alive_at: 5 minutes
		w.put("patience first", deadline(10*time.Minute))
		w.listing(true)
		w.put("old due first", deadline(90*time.Second))
		w.pass(4 * time.Minute)
		require.Equal(t, 6*time.Minute+grace, w.due("patience first"))
		w.clock(time.Hour)
		require.Equal(t, 5*time.Minute+grace, w.due("patience first"))
		w.pass(time.Minute)
		w.clock(2 * time.Hour)
		require.Equal(t, 4*time.Minute+grace, w.due("patience first"), "a second step does not add to it")
		w.clock(0)
		w.clock(3 * time.Hour)
		require.Equal(t, 5*time.Minute+grace, w.due("patience first"), "nor back and forth, beyond the old due")
	})
}

func TestS2_AfterAStepForwardTheOldDueStands(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", deadline(time.Hour))
		w.put("a", map[string]string{"uuid": "u"})
		w.del("a", "auto_unlock_at")
		w.put("a", deadline(time.Minute))
		w.listing(false)
		require.Equal(t, 5*time.Minute+grace, w.due("a"))
		w.pass(5 * time.Minute)
		w.clock(time.Hour)
		require.Equal(t, grace, w.due("a"), "not another patience")
		w.pass(grace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

func TestS2_AStepBackDelays(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", 10*time.Second, 20*time.Second)
		w.acquire("taken", 0, -grace-1)
		require.Equal(t, []string{"taken"}, w.taken())
		w.acquire("ready", 0, -grace)
		w.pass(time.Second)
		w.clock(-time.Hour)
		require.Equal(t, [protocol.NumStates]int{protocol.Held: 1, protocol.Expired: 2}, w.stats().Locks, "by the holder's clock")
		require.Empty(t, w.taken())
		w.pass(time.Hour - time.Second - 2)
		require.Empty(t, w.taken())
		w.pass(time.Second)
		require.Equal(t, []string{"ready"}, w.taken())
		w.postpone("taken", w.token("taken"), UntilModified)
		require.Equal(t, []string{"taken"}, w.taken())
		w.pass(20*time.Second + grace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

// History H: a wrong clock of ours delays at most as long as it is wrong, and a patience
// and the grace more.
func TestS2_AWrongClockDelaysOnlyAsLongAsItIsWrong(t *testing.T) {
	t.Run("a day back for 3 seconds", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.live(w.put("dead", holder(0).acquires(time.Minute)))
			w.live(w.put("long", holder(0).acquires(time.Hour)))
			w.pass(time.Minute)
			w.clock(-day)
			require.Equal(t, day+grace, w.due("dead"))
			w.pass(3 * time.Second)
			w.clock(0)
			require.Equal(t, time.Minute+grace, w.due("dead"), "its patience")
			require.Equal(t, 59*time.Minute-3*time.Second+grace, w.due("long"))
			w.pass(time.Minute + grace)
			require.Equal(t, []string{"dead"}, w.taken())
		})
	})
	t.Run("3 days slow from the start", func(t *testing.T) {
		inBubble(t, func(t *testing.T, w *world) {
			w.clock(-3 * day)
			w.put("dead", fields(0, -time.Hour))
			w.put("dead", holder(-2*time.Hour).renews(time.Minute))
			w.listing(false)
			require.Greater(t, w.due("dead"), 2*day)
			w.pass(time.Hour)
			w.clock(0)
			require.Equal(t, time.Minute+grace, w.due("dead"))
			w.pass(time.Minute + grace)
			require.Equal(t, []string{"dead"}, w.taken())
		})
	})
}

// What a step kept a lock for counts when that is over, too: outages and storms add to it.
func TestS3_AStormAfterAStepDelaysAllTheSame(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", stormMin+1, func(int) time.Duration { return time.Minute })
		w.pass(time.Minute)
		w.clock(-day)
		w.clock(0) // a day later their deadlines are long past
		w.clock(day)
		w.clock(2 * day)
		w.pass(time.Minute + grace)
		require.Len(t, w.taken(), stormMin)
		w.pass(1)
		require.Equal(t, stormDelay-1, w.due(w.delayed()[0]))
		w.pass(stormDelay - 1)
		require.Len(t, w.taken(), 1)
	}, stormy)
}

// Another deadline is not kept by steps before it.
func TestS2_AStepKeepsOneDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", holder(0).acquires(time.Hour)))
		w.clock(-day)
		w.clock(0)
		require.NotZero(t, w.observation("a").NotBefore)
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		require.NotZero(t, w.observation("a").NotBefore, "the deadline is the same")
		w.live(w.put("a", holder(0).renews(time.Second)))
		require.Zero(t, w.observation("a").NotBefore)
		require.Equal(t, time.Second+grace, w.due("a"))
	})
}

// A step keeps a lock that could not be read then, too, for when it can.
func TestS2_AStepKeepsAMalformedLock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", fields(0, 10*time.Minute))
		f := fields(0, 10*time.Minute)
		f["alert_at"] = "garbage"
		w.put("malformed", f)
		w.put("orphan", deadline(10*time.Minute))
		w.put("undated", map[string]string{"uuid": "u"})
		w.listing(false)
		w.pass(6 * time.Minute)
		w.clock(time.Hour)
		w.live(w.put("malformed", map[string]string{"alert_at": at(0)}))
		require.Positive(t, w.due("a"))
		require.Equal(t, w.due("a"), w.due("malformed"))
		for _, none := range []string{"orphan", "undated"} {
			require.Zero(t, w.observation(none).NotBefore, none)
		}
	})
}

// A step is noticed while nothing else happens.
func TestS2_AStepIsNoticedWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Hour, time.Hour)
		w.replay(w.put("late", fields(time.Hour, time.Hour)))
		w.ahead.Store(int64(2 * time.Hour))
		time.Sleep(stepCheck)
		w.check()
		require.Equal(t, [protocol.NumStates]int{protocol.Held: 1, protocol.Expired: 1}, w.core.counts)
		require.Equal(t, time.Hour+grace-stepCheck, w.due("a"))
	})
}

// A suspended lock that is modified is none the earlier for it.
func TestS2_AModifiedSuspendedLockKeepsItsDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		w.pass(time.Minute + grace)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), UntilModified)
		w.clock(-time.Hour)
		w.clock(0)
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		require.Equal(t, time.Minute+grace, w.due("a"))
		require.Empty(t, w.taken())
		w.pass(time.Minute + grace)
		require.Equal(t, []string{"a"}, w.taken())
	})
}
