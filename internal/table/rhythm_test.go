package table

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// beat renews lock a so many times, each after an interval.
func (w *world) beat(n int, interval time.Duration) {
	for range n {
		w.pass(interval)
		w.renew("a", time.Hour, 2*time.Hour)
	}
}

func (w *world) requireRhythm(every time.Duration, missed int) {
	got := w.get("a").Rhythm
	if every == 0 {
		require.Nil(w.t, got)
	} else {
		require.Equal(w.t, every.Seconds(), got.Interval)
		require.Equal(w.t, missed, got.Missed)
	}
	page, err := w.Page(w.ctx, api.Query{Silent: true, Limit: 1})
	require.NoError(w.t, err)
	require.Equal(w.t, missed >= 3, page.Matched == 1, "the filter selects who has missed three")
}

// It takes two renewals: the interval after the acquisition says nothing, and what is renewed once by hand has no
// rhythm.
func TestRhythmIsTheTimeBetweenRenewals(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.pass(time.Second)
		w.acquire("a", time.Hour, 2*time.Hour)
		w.beat(1, 5*time.Second)
		w.requireRhythm(0, 0)
		w.beat(1, 40*time.Second)
		w.requireRhythm(40*time.Second, 0)
		w.beat(1, 40*time.Second+20*time.Millisecond)
		w.requireRhythm(40*time.Second, 0)
		w.live(w.put("a", map[string]string{"status": "x"})) // says nothing
		w.pass(44 * time.Second)
		w.requireRhythm(40*time.Second, 0)
		w.pass(2 * time.Second) // an eighth late
		w.requireRhythm(40*time.Second, 1)
		w.pass(199 * time.Second)
		w.requireRhythm(40*time.Second, 6)
		w.renew("a", time.Hour, 2*time.Hour) // one hiccup, which counts as twice the rhythm
		w.requireRhythm(50*time.Second, 0)
		w.beat(6, 40*time.Second)
		require.InDelta(t, 40, w.get("a").Rhythm.Interval, 2)
		w.release("a")
		w.acquire("a", time.Hour, 2*time.Hour)
		w.requireRhythm(0, 0)
	})
}

// The next holder has a rhythm of its own, also where the end of the one before was not seen.
func TestRhythmIsThatOfOneAcquisition(t *testing.T) {
	for name, taken := range map[string]func(*world){
		"seen":       func(w *world) { w.del("a"); w.live(w.put("a", fields(time.Hour, 2*time.Hour))) },
		"listed":     func(w *world) { w.del("a"); w.put("a", fields(time.Hour, 2*time.Hour)); w.listing(false) },
		"over a key": func(w *world) { w.live(w.put("a", map[string]string{"uuid": "another"})) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				w.acquire("a", time.Hour, 2*time.Hour)
				w.beat(2, 40*time.Second)
				w.requireRhythm(40*time.Second, 0)
				taken(w)
				w.pass(time.Second)
				w.requireRhythm(0, 0)
			})
		})
	}
}

// Nobody can renew in an outage, and a renewal that was not observed live may have come at any time.
func TestWhatIsNoMissedRenewal(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.acquire("a", time.Hour, 2*time.Hour)
		w.beat(2, 40*time.Second)
		w.pass(10 * time.Minute)
		w.requireRhythm(40*time.Second, 14)
		w.outage(590 * time.Second)
		w.requireRhythm(40*time.Second, 0)
		w.pass(39 * time.Second)
		w.requireRhythm(40*time.Second, 1)
		w.renew("a", time.Hour, 2*time.Hour)
		w.requireRhythm(42300*time.Millisecond, 0) // after 49 s without the outage
		w.pass(42300 * time.Millisecond * 9 / 8)
		w.requireRhythm(42300*time.Millisecond, 1)
		w.outage(time.Second)
		w.requireRhythm(42300*time.Millisecond, 0)
		w.replay(w.put("a", holder(0).renews(2*time.Hour)))
		w.pass(10 * time.Minute)
		w.requireRhythm(0, 0)
		w.beat(1, time.Second) // since when is not known
		w.requireRhythm(42300*time.Millisecond, 0)
	})
}

// A rhythm that is too long to be kept is none, and one too short is the shortest.
func TestRhythmIsBounded(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.acquire("a", time.Hour, 20*time.Hour)
		w.beat(2, math.MaxUint16*rhythmUnit)
		w.requireRhythm(math.MaxUint16*rhythmUnit, 0)
		w.beat(9, 115*time.Minute)
		w.requireRhythm(0, 0)
		w.release("a")
		w.acquire("a", time.Hour, 2*time.Hour)
		w.beat(2, time.Millisecond)
		w.requireRhythm(100*time.Millisecond, 0)
	})
}

// A holder that writes no stamps has a rhythm all the same.
func TestRhythmOfAHolderWithoutStamps(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		f := fields(time.Hour, 2*time.Hour)
		delete(f, "locked_at")
		w.live(w.put("a", f))
		for range 2 {
			w.pass(40 * time.Second)
			w.live(w.put("a", deadline(2*time.Hour)))
		}
		w.requireRhythm(40*time.Second, 0)
		w.live(w.del("a", "uuid"))
		w.requireRhythm(0, 0)
	})
}
