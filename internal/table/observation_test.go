package table

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// owner is the clock of a host: off from the true one.
type owner time.Duration

func (o owner) at(d time.Duration) string { return at(time.Duration(o) + d) }

func (o owner) taking() map[string]string {
	f := fields(0, 0)
	f["locked_at"], f["alert_at"], f["auto_unlock_at"] = o.at(0), o.at(time.Hour), o.at(time.Hour)
	return f
}

func (o owner) renewing() map[string]string {
	return map[string]string{"alive_at": o.at(0), "alert_at": o.at(time.Hour), "auto_unlock_at": o.at(time.Hour)}
}

// sees is what is known of a lock now.
func (w *world) sees(name string) verdict.Observation {
	e := w.core.locks[name]
	require.NotNil(w.t, e, name)
	return w.observation(e, w.now())
}

func (w *world) requireOffset(name string, want time.Duration) {
	s := w.sees(name)
	require.True(w.t, s.Measured, name)
	require.Equal(w.t, want, s.Offset, name)
}

const slow = owner(-90 * time.Second)

func TestOffsetMeasuredAtAcquisitionAndEachRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", slow.taking()), true)
		w.requireOffset("a", -90*time.Second)
		w.pass(time.Minute)
		w.requireOffset("a", -90*time.Second)
		w.apply(w.put("a", owner(7*time.Second).renewing()), true)
		w.requireOffset("a", 7*time.Second)
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		w.pass(time.Minute)
		w.apply(w.put("a", map[string]string{"auto_unlock_at": at(time.Hour)}), true)
		w.requireOffset("a", 7*time.Second) // without alive_at nothing is measured
		w.apply(w.put("a", map[string]string{"alive_at": at(time.Hour)}), true)
		w.requireOffset("a", 7*time.Second) // it renewed nothing
		w.pass(2 * time.Second)
		require.Equal(t, 2*time.Second, w.sees("a").Age, "any write counts as seen")
	})
}

// A stamp in whole seconds is the low end of its second.
func TestOffsetOfWholeSecondsIsTheMinimum(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.pass(999 * time.Millisecond)
		f := fields(time.Hour, time.Hour)
		f["locked_at"] = fmt.Sprint(present().Unix())
		w.apply(w.put("a", f), true)
		w.requireOffset("a", -999*time.Millisecond)
	})
}

// A host without a clock of its own may be decades behind.
func TestOffsetOfYears(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		years := owner(-20 * 365 * 24 * time.Hour)
		w.apply(w.put("a", years.taking()), true)
		w.requireOffset("a", time.Duration(years))
		w.shift = 10 * 365 * 24 * time.Hour
		w.pass(0)
		w.requireOffset("a", time.Duration(years)-w.shift)
	})
}

func TestReplayedEventsAreNotClockObservations(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", slow.taking()), false)
		require.False(t, w.sees("a").Measured)
		w.apply(w.put("a", slow.renewing()), false)
		require.False(t, w.sees("a").Measured)
		require.Zero(t, w.stats(9).Clocks.Hosts)
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		require.False(t, w.sees("a").Measured, "what came before stays unmeasured")
		w.apply(w.put("a", slow.renewing()), true)
		w.requireOffset("a", -90*time.Second)
		w.apply(w.put("a", owner(0).renewing()), false)
		w.requireOffset("a", -90*time.Second)
	})
}

func TestReacquisitionDropsTheObservation(t *testing.T) {
	for name, events := range map[string]func(*world) []Event{
		"replayed": func(w *world) []Event {
			return append(w.del("a"), w.put("a", fields(time.Hour, time.Hour))...)
		},
		"live, without locked_at": func(w *world) []Event {
			f := fields(time.Hour, time.Hour)
			delete(f, "locked_at")
			return append(w.del("a"), w.put("a", f)...)
		},
		"over leftovers": func(w *world) []Event {
			return append(w.del("a", "uuid"), w.put("a", map[string]string{"uuid": "other"})...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.apply(w.put("a", slow.taking()), true)
				w.apply(w.put("a", slow.renewing()), true)
				w.requireOffset("a", -90*time.Second)
				w.apply(events(w), name != "replayed")
				require.False(t, w.sees("a").Measured)
				require.Zero(t, w.sees("a").Offset)
			})
		})
	}
}

func TestListingKeepsTheObservationOfTheSameHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("kept", slow.taking()), true)
		w.apply(w.put("renewed", slow.taking()), true)
		w.apply(w.put("again", slow.taking()), true)
		w.pass(time.Minute)
		w.put("renewed", owner(0).renewing()) // its events are lost
		w.del("again")
		w.put("again", owner(0).taking())
		w.put("new", owner(0).taking())
		w.listing(false)
		w.requireOffset("kept", -90*time.Second)
		require.Equal(t, time.Minute, w.sees("kept").Age, "nothing new was found")
		w.requireOffset("renewed", -90*time.Second)
		require.Equal(t, time.Minute, w.sees("renewed").Age, "written at some time since we were current")
		for _, name := range []string{"again", "new"} {
			require.False(t, w.sees(name).Measured, name)
			require.Zero(t, w.sees(name).Age, name)
		}
	})
}

func TestOffsetsShiftWithTheWallClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.apply(w.put("a", slow.taking()), true)
		w.apply(w.put("blind", slow.taking()), false)
		w.shift = time.Hour
		w.pass(0)
		w.requireOffset("a", -90*time.Second-time.Hour)
		require.Equal(t, -90*time.Second-time.Hour, w.stats(0).Clocks.Median)
		w.shift = -time.Minute
		w.pass(0)
		w.requireOffset("a", -30*time.Second)
		require.False(t, w.sees("blind").Measured)
		w.shift += maxDrift // no step, but the offset is as it is
		w.pass(0)
		w.requireOffset("a", -30*time.Second-maxDrift)
	})
}

// The instant of a deadline only moves later, and no postponement moves it.
func TestEarliestIsTheLatestDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.core.options.Lead = time.Second
		w.acquire("a", time.Minute, time.Minute)
		require.Equal(t, time.Minute+grace, w.sees("a").Earliest)
		w.shift = time.Hour // the new instant is earlier
		w.pass(time.Second)
		require.Equal(t, time.Minute+grace-time.Second, w.sees("a").Earliest)
		w.shift = -time.Hour // and now it is later
		w.pass(0)
		require.Equal(t, time.Hour+time.Minute+grace-time.Second, w.sees("a").Earliest)
		w.shift = 0
		w.pass(time.Hour + time.Minute + grace - 2*time.Second - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		got := w.take(1).Due
		require.Len(t, got, 1)
		require.Equal(t, time.Second, got[0].Observation.Earliest, "taken before due, by the lead")
		for _, delay := range []time.Duration{time.Minute, 0, UntilModified} {
			w.postpone("a", w.token("a"), delay)
			before := w.sees("a").Earliest
			w.pass(time.Minute)
			require.Equal(t, before-time.Minute, w.sees("a").Earliest, "after %s", delay)
			require.LessOrEqual(t, before, time.Second)
			w.taken()
		}
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		require.Equal(t, time.Second-3*time.Minute, w.sees("a").Earliest, "the deadline is the same")
		w.renew("a", time.Second, time.Second)
		require.Equal(t, time.Second+grace, w.sees("a").Earliest, "of another deadline")
	})
}

// A change wakes a suspended lock, but a deadline that stands is none the earlier.
func TestResumedLockKeepsItsDue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquire("a", time.Minute, time.Minute)
		w.pass(time.Minute + grace)
		require.Equal(t, []string{"a"}, w.taken())
		w.postpone("a", w.token("a"), UntilModified)
		w.shift = -time.Hour
		w.pass(0)
		w.shift = 0
		w.pass(0)
		require.Equal(t, time.Hour, w.sees("a").Earliest)
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		require.Equal(t, time.Hour, w.sees("a").Earliest)
		require.Empty(t, w.taken())
		w.pass(time.Hour)
		require.Equal(t, []string{"a"}, w.taken())
	})
}

func TestTakeReturnsTheObservation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("listed", fields(0, 0))
		w.listing(false)
		w.pass(time.Second)
		f := slow.taking()
		f["auto_unlock_at"] = at(0)
		w.apply(w.put("seen", f), true)
		w.pass(grace + time.Second)
		got := w.take(9).Due
		require.Len(t, got, 2)
		require.Equal(t, verdict.Observation{Age: grace + 2*time.Second, Earliest: -2 * time.Second}, got[0].Observation)
		require.Equal(t, verdict.Observation{Measured: true, Offset: -90 * time.Second, Age: grace + time.Second, Earliest: -time.Second}, got[1].Observation)
	})
}

func TestDueInGetsTheObservation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var asked []verdict.Observation
		w.core.options.DueIn = func(_ *lock.Lock, s verdict.Observation, now lock.Timestamp) time.Duration {
			require.Equal(t, lock.TimestampOf(present()), now)
			asked = append(asked, s)
			return time.Hour
		}
		w.apply(w.put("a", slow.taking()), true)
		require.Equal(t, []verdict.Observation{{Measured: true, Offset: -90 * time.Second}}, asked)
	})
}

func TestHostClocks(t *testing.T) {
	h := make(hosts)
	require.Equal(t, Clocks{}, h.clocks(0, time.Second, 9))
	for i, off := range []time.Duration{0, 2, -2, 3, -3, 40, -50} {
		h.measured(fmt.Sprint("h", i), off*time.Second, instant(i))
	}
	h.measured("", time.Hour, 0)
	require.Equal(t, Clocks{Hosts: 7, Skewed: []HostClock{
		{"h6", -50 * time.Second}, {"h5", 40 * time.Second}, {"h3", 3 * time.Second}, {"h4", -3 * time.Second},
	}}, h.clocks(10, 2*time.Second, 9), "the worst first, names decide; 2 s are within the tolerance")
	require.Len(t, h.clocks(10, 2*time.Second, 2).Skewed, 2)
	require.Empty(t, h.clocks(10, 2*time.Second, 0).Skewed)
	h.measured("h6", 5*time.Second, 11)
	require.Equal(t, 2*time.Second, h.clocks(11, time.Minute, 0).Median, "the newest measurement counts")
	h.shift(-time.Minute)
	require.Equal(t, -58*time.Second, h.clocks(11, time.Minute, 0).Median)
}

func TestHostClocksExpireAfterAnHour(t *testing.T) {
	h := make(hosts)
	h.measured("old", time.Minute, 0)
	h.measured("new", time.Second, 1)
	require.Equal(t, 2, h.clocks(instant(hostMemory), time.Second, 0).Hosts)
	require.Equal(t, Clocks{Hosts: 1, Median: time.Second}, h.clocks(instant(hostMemory)+1, time.Second, 9))
	require.Len(t, h, 1)
}

func TestHostClocksAreBounded(t *testing.T) {
	h := make(hosts)
	for i := range maxHosts + 10 {
		h.measured(fmt.Sprint(i), time.Second, 0)
	}
	require.Len(t, h, maxHosts)
	h.measured("0", time.Minute, 0)
	require.Equal(t, time.Minute, h["0"].offset, "a known host is measured again")
}

func TestStatsIncludeHostClocks(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i, off := range []owner{0, slow, owner(5 * time.Second)} {
			f := off.taking()
			f["hostname"] = fmt.Sprint("h", i)
			w.apply(w.put(fmt.Sprint(i), f), true)
		}
		require.Equal(t, Clocks{Hosts: 3, Skewed: []HostClock{{"h1", -90 * time.Second}}}, w.stats(1).Clocks)
		w.pass(hostMemory + 1)
		require.Zero(t, w.stats(1).Clocks.Hosts)
	})
}

func TestWindowSlides(t *testing.T) {
	for _, width := range []time.Duration{time.Second, time.Minute, time.Hour + 7} {
		w := window{width: instant(width)}
		step := max(1, w.width/63)
		start := instant(time.Hour) + 12345
		for i := range 300 { // one each 300th of the width, for one width
			w.add(start + instant(i)*w.width/300)
		}
		end := start + 299*w.width/300
		require.InDelta(t, 300, w.count(end), 10, width)
		require.InDelta(t, 150, w.count(end+w.width/2), 10, width)
		require.Zero(t, w.count(end+w.width+step), width)
		w.add(end + 100*w.width)
		require.Equal(t, 1, w.count(end+100*w.width), "a slot is used again")
	}
	var none window
	none.add(math.MaxInt32)
	require.Zero(t, none.count(math.MaxInt32), "no width, no window")
}

func TestCameDueCountsALockOncePerDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		cameDue := func() int { return w.pressure(w.now()).CameDue }
		w.acquire("a", 0, time.Second)
		w.acquire("b", 0, time.Second)
		require.Zero(t, cameDue())
		w.pass(time.Second + grace)
		require.Equal(t, 2, cameDue())
		token := w.token("a")
		require.Len(t, w.taken(), 2)
		for _, delay := range []time.Duration{0, time.Second, UntilModified} {
			w.postpone("a", token, delay)
			w.pass(time.Second)
			w.taken()
		}
		w.apply(w.put("a", map[string]string{"purpose": "x"}), true)
		require.Equal(t, []string{"a"}, w.taken(), "not suspended any more")
		w.shift = -10 * time.Second
		w.pass(0)
		w.pass(10 * time.Second)
		require.ElementsMatch(t, []string{"a", "b"}, w.taken())
		require.Equal(t, 2, cameDue())
		w.renew("a", 0, 10*time.Second)
		w.pass(20*time.Second + grace) // our clock is 10 s behind
		require.Equal(t, 3, cameDue(), "another deadline")
		w.pass(time.Minute)
		require.Zero(t, cameDue())
	})
}

func TestCameDueWithoutThoseListedPastTheirDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("late", fields(-time.Hour, -time.Hour))
		w.put("on the edge", fields(0, 0))
		w.put("in time", fields(0, time.Second))
		w.put("orphan", map[string]string{"alert_at": at(0)})
		undated := fields(time.Second, 0)
		delete(undated, "auto_unlock_at")
		w.put("undated", undated)
		w.listing(false)
		require.Equal(t, verdict.Pressure{Dated: 3, Backlog: 1}, w.pressure(w.now()))
		w.pass(orphanGrace - 1)
		require.Equal(t, verdict.Pressure{CameDue: 1, Dated: 3, Backlog: 3}, w.pressure(w.now()))
		w.pass(1)
		require.Equal(t, verdict.Pressure{CameDue: 1, Dated: 3, Backlog: 4}, w.pressure(w.now()), "an orphan has no deadline")
		require.Equal(t, w.pressure(w.now()), w.take(1).Pressure)
		w.renew("late", 0, time.Second)
		w.acquire("dead on arrival", 0, -time.Hour)
		w.pass(time.Second + grace)
		require.Equal(t, verdict.Pressure{CameDue: 3, Dated: 4, Backlog: 5}, w.pressure(w.now()), "of another deadline; of a live event")
	})
}
