package table

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireMargins holds what the histogram was told, and what the table keeps of lock a.
func (w *world) requireMargins(least any, all ...float64) {
	require.Len(w.t, *w.margins, len(all))
	if len(all) > 0 {
		require.InDeltaSlice(w.t, all, []float64(*w.margins), 1e-6)
	}
	got := w.get("a").Margin
	if least == nil {
		require.Nil(w.t, got)
		return
	}
	require.NotNil(w.t, got)
	require.InDelta(w.t, least, *got, .0039, "kept in steps of 0.004")
}

// By the holder's own clock, from its first renewal on, whatever the order of the keys; at or past the deadline
// nothing is left.
func TestMarginIsTheShareOfThePatienceThatWasLeft(t *testing.T) {
	for _, h := range []holder{0, slow, holder(time.Hour)} {
		for _, reversed := range []bool{false, true} {
			inBubble(t, func(_ *testing.T, w *world) {
				renew := func(after time.Duration) {
					w.pass(after)
					events := w.put("a", h.renews(100*time.Second))
					if reversed {
						slices.Reverse(events)
					}
					w.live(events)
				}
				w.live(w.put("a", h.acquires(40*time.Second)))
				w.requireMargins(nil)
				renew(10 * time.Second)
				w.requireMargins(.75, .75)
				renew(60 * time.Second)
				w.requireMargins(.4, .75, .4)
				renew(50 * time.Second)
				w.requireMargins(.4, .75, .4, .5)
				renew(100 * time.Second)
				w.requireMargins(0, .75, .4, .5, 0)
				renew(101 * time.Second)
				w.requireMargins(0, .75, .4, .5, 0, 0)
				require.EqualValues(t, 5, w.counted().renewed)
			})
		}
	}
}

// Patience has no maximum here, unlike in a verdict.
func TestMarginOfALongPatience(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.live(w.put("a", slow.acquires(20*time.Hour)))
		w.pass(19 * time.Hour)
		w.live(w.put("a", slow.renews(20*time.Hour)))
		w.requireMargins(.05, .05)
	})
}

// A holder that set its clock back has all of it left.
func TestMarginOfAClockThatWasSetBack(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.live(w.put("a", holder(time.Hour).acquires(time.Minute)))
		w.pass(time.Second)
		w.live(w.put("a", slow.renews(time.Minute)))
		w.requireMargins(1, 1)
	})
}

// Without alive_at, the arrivals count, by the clock that the acquisition showed.
func TestMarginOfAHolderWithoutAliveAt(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		renew := func() []Event {
			w.pass(30 * time.Second)
			return w.put("a", map[string]string{"auto_unlock_at": slow.at(100 * time.Second)})
		}
		w.live(w.put("a", slow.acquires(40*time.Second)))
		w.live(renew())
		w.requireMargins(.25, .25)
		w.live(renew())
		w.requireMargins(.25, .25, .7)
		two := renew()
		w.live(append(two, renew()...)) // when the first of them was written is not known
		w.requireMargins(.25, .25, .7, .4)
		w.replay(renew())
		w.live(renew())
		w.requireMargins(.25, .25, .7, .4)
		w.live(renew())
		w.requireMargins(.25, .25, .7, .4, .7)
	})
}

// What says nothing about how late a holder was.
func TestMarginIsNotObserved(t *testing.T) {
	for name, change := range map[string]func(*world){
		"replayed":           func(w *world) { w.replay(w.put("a", holder(0).renews(time.Minute))) },
		"found by a listing": func(w *world) { w.put("a", holder(0).renews(time.Minute)); w.listing(false) },
		"status":             func(w *world) { w.live(w.put("a", map[string]string{"status": "x"})) },
		"alive_at alone":     func(w *world) { w.live(w.put("a", map[string]string{"alive_at": at(0)})) },
		"deadline deleted":   func(w *world) { w.live(w.del("a", "auto_unlock_at")) },
		"released with it": func(w *world) {
			e := w.put("a", holder(0).renews(time.Minute))
			w.live(together(e, w.del("a", "uuid")))
		},
		"written over with it": func(w *world) { f := holder(0).renews(time.Minute); f["uuid"] = "u"; w.live(w.put("a", f)) },
		"taken again": func(w *world) {
			gone := w.del("a")
			w.live(together(gone, w.put("a", holder(0).acquires(time.Minute))))
		},
		"no clock": func(w *world) {
			w.live(w.put("a", map[string]string{"uuid": "u"}))
			w.live(w.put("a", deadline(time.Minute)))
		},
		"no clock before": func(w *world) {
			w.live(w.put("a", map[string]string{"uuid": "u"}))
			w.live(w.put("a", deadline(time.Minute)))
			w.pass(time.Second)
			w.live(w.put("a", holder(0).renews(time.Minute)))
		},
		"no patience": func(w *world) {
			w.release("a")
			w.live(w.put("a", holder(0).acquires(0)))
			w.live(w.put("a", holder(0).renews(time.Minute)))
		},
		"no deadline before": func(w *world) {
			w.release("a")
			f := holder(0).acquires(0)
			delete(f, "auto_unlock_at")
			w.live(w.put("a", f))
			w.live(w.put("a", holder(0).renews(time.Minute)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				w.live(w.put("a", holder(0).acquires(time.Minute)))
				w.pass(time.Second)
				change(w)
				w.requireMargins(nil)
			})
		})
	}
}

// together makes the events of two transactions those of one.
func together(first, second []Event) []Event {
	for i := range first {
		first[i].KV.Mod = second[0].KV.Mod
	}
	return append(first, second...)
}

// One transaction may renew many locks, and the keys of each may lie anywhere in it.
func TestMarginsOfOneTransaction(t *testing.T) {
	inBubble(t, func(_ *testing.T, w *world) {
		w.live(w.put("a", holder(0).acquires(100*time.Second)))
		w.live(w.put("b", holder(0).acquires(200*time.Second)))
		w.pass(50 * time.Second)
		a, b := w.put("a", holder(0).renews(time.Minute)), w.put("b", holder(0).renews(time.Minute))
		w.live(together([]Event{a[0], b[0], a[1]}, b[1:]))
		w.requireMargins(.5, .5, .75)
	})
}

// The least margin is that of the present holder.
func TestMarginIsForgottenWithItsHolder(t *testing.T) {
	for name, another := range map[string]func(*world){
		"taken again":        func(w *world) { w.release("a"); w.live(w.put("a", holder(0).acquires(time.Minute))) },
		"without its fields": func(w *world) { w.live(w.del("a", "uuid")); w.live(w.put("a", holder(0).acquires(time.Minute))) },
		"written over":       func(w *world) { w.live(w.put("a", map[string]string{"uuid": "another"})) },
		"listed": func(w *world) {
			w.del("a")
			w.put("a", holder(0).acquires(time.Minute))
			w.listing(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, w *world) {
				w.live(w.put("a", holder(0).acquires(time.Minute)))
				w.pass(30 * time.Second)
				w.live(w.put("a", holder(0).renews(time.Minute)))
				w.requireMargins(.5, .5)
				w.listing(true)
				w.requireMargins(.5, .5)
				another(w)
				w.requireMargins(nil, .5)
			})
		})
	}
}

// late takes a lock for ten seconds, and renews it with some time left.
func (w *world) late(name, owner string, left time.Duration) { w.lateOn(name, owner, "h1", left) }

func (w *world) lateOn(name, owner, host string, left time.Duration) {
	f := holder(0).acquires(10 * time.Second)
	f["owner"], f["hostname"] = owner, host
	w.live(w.put(name, f))
	w.pass(10*time.Second - left)
	w.live(w.put(name, holder(0).renews(time.Minute)))
	w.release(name)
}

func (w *world) missed() (text []string) {
	for _, m := range w.stats().NearMisses {
		text = append(text, fmt.Sprintf("%s of %s@%s %g ×%d", m.Name, m.Owner, m.Hostname, m.Margin, m.Renewals))
	}
	return text
}

// Those that were late again come first, then the least margin; after an hour they are forgotten.
func TestNearMissesAreTheWorstFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		require.Empty(t, w.missed())
		w.late("healthy", "o", 1001*time.Millisecond)
		require.Empty(t, w.missed())
		start := present()
		w.late("b", "o", 0)
		w.late("a", "o", 0)
		w.late("again", "o", 500*time.Millisecond)
		w.late("again", "o", time.Second)
		w.late("again", "another", 100*time.Millisecond)
		w.late("tenth", "o", time.Second)
		require.Equal(t, []string{"again of o@h1 0.052 ×2", "a of o@h1 0 ×1", "b of o@h1 0 ×1", "again of another@h1 0.012 ×1",
			"tenth of o@h1 0.1 ×1"}, w.missed())
		require.Equal(t, start.Add(38500*time.Millisecond).UTC(), w.stats().NearMisses[0].At)
		w.pass(time.Hour - 20*time.Second)
		w.late("tenth", "o", time.Second)
		require.Equal(t, []string{"tenth of o@h1 0.1 ×2", "again of another@h1 0.012 ×1"}, w.missed())
		w.pass(30 * time.Minute)
		w.late("a", "o", 500*time.Millisecond)
		require.Equal(t, []string{"tenth of o@h1 0.1 ×2", "a of o@h1 0.052 ×1"}, w.missed(), "an hour passed since it was late")
	})
}

// The host is that of the holder with the least margin, whoever was late after it.
func TestNearMissNamesWhoMadeIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for _, c := range []struct{ host, left, want string }{
			{"a", "500ms", "x of o@a 0.052 ×1"},
			{"b", "900ms", "x of o@a 0.052 ×2"},
			{"c", "100ms", "x of o@c 0.012 ×3"},
			{"d", "100ms", "x of o@d 0.012 ×4"},
		} {
			left, err := time.ParseDuration(c.left)
			require.NoError(t, err)
			w.lateOn("x", "o", c.host, left)
			require.Equal(t, []string{c.want}, w.missed())
		}
	})
}

// A clock of ours that steps does not move what was.
func TestNearMissIsShownByTheClockOfNow(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.late("a", "o", 0)
		at := w.stats().NearMisses[0].At
		w.clock(time.Hour)
		require.Equal(t, at.Add(time.Hour), w.stats().NearMisses[0].At)
		w.pass(missMemory)
		require.Len(t, w.missed(), 1)
		w.pass(1)
		require.Empty(t, w.missed())
	})
}

// After an outage all renew late; one that always does is still found, and hostile names take no room.
func TestNearMissesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.late("chronic", "o", 500*time.Millisecond)
		for i := range maxMisses + 10 {
			w.late(fmt.Sprintf("%04d\xff%s", i, strings.Repeat("x", 2*maxMissName)), "o", 0)
			if i%100 == 0 {
				w.late("chronic", "o", 500*time.Millisecond)
			}
		}
		require.Len(t, w.core.misses.of, maxMisses)
		require.Equal(t, maxMisses, w.core.misses.recent.Len())
		worst := w.stats().NearMisses
		require.Len(t, worst, MaxNearMisses)
		require.Equal(t, "chronic", worst[0].Name)
		require.EqualValues(t, 7, worst[0].Renewals)
		require.LessOrEqual(t, len(worst[1].Name), maxMissName+len("…"))
		require.Equal(t, "\uFFFDx", strings.TrimLeft(worst[1].Name, "0123456789")[:4])
	})
}
