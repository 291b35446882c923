package table

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func (w *world) requireOffset(name string, want time.Duration) {
	o := w.observation(name)
	require.True(w.t, o.Measured, name)
	require.Equal(w.t, want, o.Offset, name)
}

const slow = holder(-90 * time.Second)

// Rule 3.
func TestS2_AcquisitionAndEachRenewalMeasureTheHoldersClock(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(time.Hour)))
		w.requireOffset("a", -90*time.Second)
		w.pass(time.Minute)
		w.requireOffset("a", -90*time.Second)
		w.live(w.put("a", holder(7*time.Second).renews(time.Hour)))
		w.requireOffset("a", 7*time.Second)
	})
}

// Rule 5: what is a sign of the holder, and what only looks like one.
func TestS2_OnlyWritesOfUUIDAndDeadlineAreSignsOfTheHolder(t *testing.T) {
	for name, c := range map[string]struct {
		fields func() map[string]string
		sign   bool
	}{
		"status":          {func() map[string]string { return map[string]string{"status": "x"} }, false},
		"stack":           {func() map[string]string { return map[string]string{"backtrace": "x"} }, false},
		"alert_at":        {func() map[string]string { return map[string]string{"alert_at": at(time.Hour)} }, false},
		"alive_at alone":  {func() map[string]string { return map[string]string{"alive_at": at(0)} }, false},
		"auto_unlock_at":  {func() map[string]string { return deadline(time.Hour) }, true},
		"the same one":    {func() map[string]string { return deadline(time.Hour - time.Minute) }, true},
		"renewal":         {func() map[string]string { return holder(0).renews(time.Hour) }, true},
		"the uuid, again": {func() map[string]string { return map[string]string{"uuid": "u"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				f := slow.acquires(time.Hour)
				f["uuid"], f["auto_unlock_at"] = "u", at(time.Hour)
				w.live(w.put("a", f))
				w.pass(time.Minute)
				w.replay(w.put("a", c.fields()))
				o := w.observation("a")
				require.True(t, o.Measured)
				require.Equal(t, c.sign, o.Late)
				w.pass(time.Minute)
				w.live(w.put("a", c.fields()))
				o = w.observation("a")
				require.False(t, o.Late)
				if c.sign {
					require.Zero(t, o.Age)
				} else {
					require.Equal(t, 2*time.Minute, o.Age)
				}
			})
		})
	}
}

// A late renewal stays late until the next write of uuid or auto_unlock_at: alive_at
// alone, which renews nothing, does not make up for it.
func TestS2_ALateRenewalStaysLate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(time.Minute)))
		w.replay(w.put("a", deadline(time.Minute)))
		require.True(t, w.observation("a").Late)
		w.live(w.put("a", map[string]string{"alive_at": at(0)}))
		require.True(t, w.observation("a").Late)
		w.requireOffset("a", -90*time.Second)
		require.Equal(t, 5*time.Minute+grace, w.due("a"))
		w.live(w.put("a", deadline(time.Minute)))
		require.False(t, w.observation("a").Late)
	})
}

// Rule 5: without a stamp nothing is measured, and the observation of the acquisition
// counts.
func TestS2_ARenewalWithoutAStampKeepsTheObservation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(time.Minute)))
		w.pass(30 * time.Second)
		w.live(w.put("a", map[string]string{"auto_unlock_at": slow.at(time.Minute)}))
		w.requireOffset("a", -90*time.Second)
		require.Equal(t, time.Minute+grace, w.due("a"), "no patience")
	})
}

// Rule 5: an observation of before counts for a renewal without a stamp only if it is the acquisition's or newer, and
// locked_at tells how old it is. Any other delays, as where the last write is late, and does not replace patience.
func TestS2_WhatCountsForARenewalWithoutAStamp(t *testing.T) {
	const ttl = 3 * time.Minute
	without := func(field string) map[string]string {
		f := slow.acquires(ttl)
		delete(f, field)
		return f
	}
	acquired := func(w *world) { w.live(w.put("a", slow.acquires(ttl))) }
	stamped := func(w *world) { w.live(w.put("a", slow.renews(ttl))) }
	another := func() map[string]string { return map[string]string{"locked_at": slow.at(0)} }
	for name, c := range map[string]struct {
		before func(*world)
		counts bool
	}{
		"the acquisition":      {acquired, true},
		"a renewal after it":   {func(w *world) { acquired(w); w.pass(time.Second); stamped(w) }, true},
		"it is acquired again": {func(w *world) { acquired(w); w.live(append(w.del("a"), w.put("a", slow.acquires(ttl))...)) }, true},
		"and the same locked_at again": {func(w *world) {
			f := slow.acquires(ttl)
			w.live(w.put("a", f))
			w.pass(time.Second)
			w.live(w.put("a", f))
		}, true},
		"listed without a change":          {func(w *world) { acquired(w); w.listing(false) }, true},
		"the acquisition was late":         {func(w *world) { w.replay(w.put("a", slow.acquires(ttl))); stamped(w) }, false},
		"the acquisition was listed":       {func(w *world) { w.put("a", slow.acquires(ttl)); w.listing(false); stamped(w) }, false},
		"an acquisition without locked_at": {func(w *world) { w.live(w.put("a", without("locked_at"))); stamped(w) }, false},
		"another holder without locked_at": {func(w *world) {
			acquired(w)
			w.live(append(w.del("a"), w.put("a", without("locked_at"))...))
			stamped(w)
		}, false},
		"another holder that was late": {func(w *world) {
			acquired(w)
			w.replay(append(w.del("a"), w.put("a", slow.acquires(ttl))...))
			stamped(w)
		}, false},
		"another holder that was listed": {func(w *world) { acquired(w); w.del("a"); w.put("a", slow.acquires(ttl)); w.listing(false); stamped(w) }, false},
		"the uuid was written over":      {func(w *world) { acquired(w); w.live(w.put("a", map[string]string{"uuid": "other"})); stamped(w) }, false},
		"another locked_at with a renewal": {func(w *world) {
			acquired(w)
			w.pass(time.Second)
			w.live(w.put("a", map[string]string{"locked_at": slow.at(0), "auto_unlock_at": slow.at(ttl)}))
		}, false},
		"another locked_at alone":              {func(w *world) { acquired(w); w.pass(time.Second); w.live(w.put("a", another())) }, false},
		"another locked_at that was late":      {func(w *world) { acquired(w); w.pass(time.Second); w.replay(w.put("a", another())) }, false},
		"another locked_at that a listing has": {func(w *world) { acquired(w); w.pass(time.Second); w.put("a", another()); w.listing(true) }, false},
		"locked_at was deleted":                {func(w *world) { acquired(w); w.live(w.del("a", "locked_at")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				c.before(w)
				w.pass(time.Second)
				w.live(w.put("a", map[string]string{"auto_unlock_at": slow.at(ttl)}))
				w.requireOffset("a", -90*time.Second)
				o := w.observation("a")
				require.Equal(t, c.counts, !o.Late)
				require.Zero(t, o.Age)
				due := ttl + grace
				if !c.counts {
					due = 5*time.Minute + grace
				}
				require.Equal(t, due, w.due("a"))
				w.live(w.put("a", map[string]string{"auto_unlock_at": slow.at(10 * time.Minute)}))
				require.Equal(t, 10*time.Minute+grace, w.due("a"), "its clock delays nevertheless")
				w.live(w.put("a", slow.renews(ttl)))
				require.Equal(t, ttl+grace, w.due("a"))
				require.False(t, w.observation("a").Late)
			})
		})
	}
}

// Without any stamp there is nothing to keep.
func TestS2_ALiveHolderWithoutStampsGetsPatience(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := fields(time.Minute, time.Minute)
		delete(f, "locked_at")
		w.live(w.put("a", f))
		require.False(t, w.observation("a").Measured)
		require.Equal(t, 5*time.Minute+grace, w.due("a"))
	})
}

// A stamp in whole seconds is the low end of its second.
func TestOffsetOfWholeSecondsIsTheMinimum(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.pass(999 * time.Millisecond)
		f := fields(time.Hour, time.Hour)
		f["locked_at"] = fmt.Sprint(present().Unix())
		w.live(w.put("a", f))
		w.requireOffset("a", -999*time.Millisecond)
	})
}

// A host without a clock of its own may be decades slow.
func TestOffsetOfYears(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		years := holder(-20 * 365 * 24 * time.Hour)
		w.live(w.put("a", years.acquires(time.Hour)))
		w.requireOffset("a", time.Duration(years))
		w.clock(10 * 365 * 24 * time.Hour)
		w.requireOffset("a", time.Duration(years)-10*365*24*time.Hour)
	})
}

// Rule 2.
func TestS2_LateKnowledgeMeasuresNoClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.replay(w.put("a", slow.acquires(time.Hour)))
		require.False(t, w.observation("a").Measured)
		w.replay(w.put("a", slow.renews(time.Hour)))
		require.False(t, w.observation("a").Measured)
		w.live(w.put("a", map[string]string{"purpose": "x"}))
		require.False(t, w.observation("a").Measured, "what came before stays unmeasured")
		w.live(w.put("a", slow.renews(time.Hour)))
		w.requireOffset("a", -90*time.Second)
		w.replay(w.put("a", holder(0).renews(time.Hour)))
		w.requireOffset("a", -90*time.Second)
	})
}

// Another holder's clock is not the clock of the one before.
func TestS2_AnotherHolderIsNotMeasuredYet(t *testing.T) {
	taken := func(without ...string) map[string]string {
		f := fields(time.Hour, time.Hour)
		f["uuid"] = "other"
		for _, field := range without {
			delete(f, field)
		}
		return f
	}
	for name, c := range map[string]struct {
		live   bool
		events func(*world) []Event
	}{
		"replayed":                {false, func(w *world) []Event { return append(w.del("a"), w.put("a", taken())...) }},
		"live, without locked_at": {true, func(w *world) []Event { return append(w.del("a"), w.put("a", taken("locked_at"))...) }},
		"over leftovers": {true, func(w *world) []Event {
			return append(w.del("a", "uuid"), w.put("a", map[string]string{"uuid": "other"})...)
		}},
		"a renewal came before": {true, func(w *world) []Event {
			return append(w.put("a", slow.renews(time.Hour)), w.put("a", map[string]string{"uuid": "other"})...)
		}},
		"over a uuid":                {true, func(w *world) []Event { return w.put("a", map[string]string{"uuid": "other"}) }},
		"over a uuid, with the rest": {true, func(w *world) []Event { return w.put("a", taken()) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				w.live(w.put("a", slow.acquires(time.Hour)))
				w.live(w.put("a", slow.renews(time.Hour)))
				w.requireOffset("a", -90*time.Second)
				events := c.events(w)
				if c.live {
					w.live(events)
				} else {
					w.replay(events)
				}
				require.False(t, w.observation("a").Measured)
				require.Zero(t, w.observation("a").Offset)
			})
		})
	}
}

// A client that writes all its fields again at each renewal is the same holder.
func TestS2_TheSameUUIDAgainIsTheSameHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := slow.acquires(time.Hour)
		w.live(w.put("a", f))
		w.live(w.put("a", map[string]string{"uuid": f["uuid"]}))
		w.requireOffset("a", -90*time.Second)
		renewal := holder(5 * time.Second).renews(time.Hour)
		renewal["uuid"] = f["uuid"]
		w.live(w.put("a", renewal))
		w.requireOffset("a", 5*time.Second)
		w.put("a", map[string]string{"uuid": f["uuid"]})
		w.listing(true)
		w.requireOffset("a", 5*time.Second)
		require.Equal(t, counted{acquired: 1, renewed: 1, drift: 1}, w.counted())
	})
}

// The events of an acquisition come in the order of its operations.
func TestS2_AnAcquisitionIsMeasuredInAnyOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		f := slow.acquires(time.Hour)
		f["alive_at"] = slow.at(0)
		events := w.put("a", f)
		slices.Reverse(events)
		w.live(events)
		w.requireOffset("a", -90*time.Second)
		require.Equal(t, counted{acquired: 1}, w.counted())
	})
}

// What arrives with an acquisition and renews nothing does not hide its stamp.
func TestS2_AnAliveAtAloneDoesNotHideTheAcquisition(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.live(append(w.put("a", slow.acquires(time.Hour)), w.put("a", map[string]string{"alive_at": at(0)})...))
		w.requireOffset("a", -90*time.Second)
	})
}

// An old stamp next to a new write of the uuid did not arrive now.
func TestS2_AStampIsMeasuredWhenItArrives(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		f := fields(time.Hour, time.Hour)
		w.live(w.put("a", f))
		w.live(w.put("a", holder(0).renews(time.Hour)))
		w.pass(time.Minute)
		w.live(w.put("a", map[string]string{"uuid": f["uuid"]}))
		w.requireOffset("a", 0)
	})
}

func TestS2_AListingKeepsTheObservationOfTheSameHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, name := range []string{"kept", "renewed", "again", "over"} {
			w.live(w.put(name, slow.acquires(time.Hour)))
		}
		w.pass(time.Minute)
		w.pass(time.Second)
		w.put("renewed", holder(0).renews(time.Hour)) // its events are lost
		w.del("again")
		w.put("again", holder(0).acquires(time.Hour))
		w.put("over", map[string]string{"uuid": "other"})
		w.put("new", holder(0).acquires(time.Hour))
		w.listing(false)
		require.Equal(t, verdict.Observation{Measured: true, Offset: -90 * time.Second, Age: time.Minute + time.Second},
			w.observation("kept"), "nothing new was found")
		require.Equal(t, verdict.Observation{Measured: true, Offset: -90 * time.Second, Late: true}, w.observation("renewed"))
		for _, name := range []string{"again", "over", "new"} {
			require.Equal(t, verdict.Observation{Late: true}, w.observation(name), name)
		}
	})
}
