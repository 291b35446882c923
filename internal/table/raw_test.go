package table

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Rule 8: a stamp counts from its arrival on the slower one of the two clocks. The monotonic one runs fast by as
// much as NTP may slew it, and then slow.
func TestS2_ADeadlineIsNotPassedBeforeItIsOnTheRawClock(t *testing.T) {
	var fast atomic.Int64
	inBubble(t, func(t *testing.T, w *world) {
		w.pass(time.Hour)
		w.live(w.put("a", slow.acquires(day)))
		w.requireOffset("a", -90*time.Second)
		due := day + grace // it is slow by more than the tolerance
		require.Equal(t, due, w.due("a"))
		for range 10 {
			w.pass(time.Minute)
			fast.Add(int64(time.Minute / 2000))
		}
		w.pass(time.Minute)
		require.Equal(t, due-11*time.Minute+10*time.Minute/2000, w.due("a"))
		w.live(w.put("b", holder(0).acquires(day)))
		w.requireOffset("b", 0)
		fast.Add(-int64(time.Minute))
		w.pass(time.Minute)
		require.Equal(t, due-12*time.Minute+10*time.Minute/2000, w.due("a"), "and nothing hastens it")
		w.requireOffset("b", 0)
		w.pass(w.due("a") - 1)
		require.Empty(t, w.taken())
	}, func(o *Options) {
		start := time.Now()
		o.Raw = func() time.Duration { return time.Since(start) - time.Duration(fast.Load()) }
	})
}

// So it is from the start.
func TestTheFirstSecondsOfTheRawClock(t *testing.T) {
	var fast atomic.Int64
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(day)))
		w.pass(slewCheck / 2)
		fast.Add(int64(slewCheck / 2000))
		w.pass(slewCheck)
		require.Equal(t, day+grace-3*slewCheck/2+slewCheck/2000, w.due("a"))
	}, func(o *Options) {
		raw := o.Raw
		o.Raw = func() time.Duration { return raw() - time.Duration(fast.Load()) }
	})
}

// It is read once in ten seconds: what passes between the readings of the two clocks adds up.
func TestTheRawClockIsReadSeldom(t *testing.T) {
	var read atomic.Int64
	inBubble(t, func(t *testing.T, w *world) {
		before := read.Load()
		for range 100 {
			w.pass(time.Second)
		}
		require.EqualValues(t, 10, read.Load()-before)
	}, func(o *Options) {
		raw := o.Raw
		o.Raw = func() time.Duration { read.Add(1); return raw() }
	})
}

// That clock advances as time does.
func TestRawClock(t *testing.T) {
	raw := Raw()
	a := time.Now()
	from := raw()
	b := time.Now()
	for time.Since(b) < 5*time.Millisecond { // which is what the clocks are for
	}
	c := time.Now()
	to := raw()
	passed := (to - from).Seconds()
	require.GreaterOrEqual(t, passed, 0.99*c.Sub(b).Seconds())
	require.LessOrEqual(t, passed, 1.01*time.Since(a).Seconds())
}
