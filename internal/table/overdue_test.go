package table

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// A holder whose clock is off and that renews in time is neither overdue nor expired. Once it
// stops, both come when its own clock passes the deadlines, however far it or ours is off.
func TestStatesFollowTheHoldersClock(t *testing.T) {
	for _, clock := range []holder{0, slow, holder(-time.Hour), holder(90 * time.Second), holder(time.Hour)} {
		for _, ours := range []time.Duration{0, time.Hour, -time.Hour} {
			inBubble(t, func(t *testing.T, w *world) {
				w.clock(ours)
				w.live(w.put("a", clock.takes(20*time.Second, time.Minute)))
				for range 10 {
					w.pass(10 * time.Second)
					require.Equal(t, protocol.Held, w.state("a"))
					w.live(w.put("a", clock.defers(20*time.Second, time.Minute)))
				}
				w.pass(20*time.Second - 1)
				require.Equal(t, [protocol.NumStates]int{protocol.Held: 1}, w.stats().Locks)
				require.Zero(t, w.stats().OverdueTotal)
				w.pass(1)
				require.Equal(t, [protocol.NumStates]int{protocol.Overdue: 1}, w.stats().Locks)
				require.Equal(t, 1, w.stats().OverdueTotal)
				w.pass(40*time.Second - 1)
				require.Equal(t, protocol.Overdue, w.state("a"))
				w.pass(1)
				require.Equal(t, [protocol.NumStates]int{protocol.Expired: 1}, w.stats().Locks)
				require.Equal(t, protocol.Expired, w.state("a"))
			})
		}
	}
}

// takes returns the fields of a lock with an alert time, taken now.
func (h holder) takes(alert, auto time.Duration) map[string]string {
	f := h.acquires(auto)
	f["alert_at"] = h.at(alert)
	return f
}

// defers returns the fields of a renewal with an alert time.
func (h holder) defers(alert, auto time.Duration) map[string]string {
	f := h.renews(auto)
	f["alert_at"] = h.at(alert)
	return f
}

// A clock that was not observed is taken for ours.
func TestStatesWithoutAnObservation(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("a", slow.takes(time.Minute, time.Hour))
		w.listing(false)
		require.Equal(t, protocol.Overdue, w.state("a"))
		w.live(w.put("a", slow.defers(time.Minute, time.Hour)))
		require.Equal(t, protocol.Held, w.state("a"))
	})
}

// A drift of our clock, each part of which is too small for a step, may show that a holder is slow, and so not overdue.
func TestADriftEndsAnOverdue(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.live(w.put("a", holder(-3*time.Second/2).takes(10*time.Second, time.Hour)))
		w.pass(9 * time.Second)
		require.Equal(t, protocol.Overdue, w.state("a"), "its clock is right within the tolerance")
		w.ahead.Store(int64(time.Second))
		require.NoError(t, w.Reschedule(w.ctx))
		w.check()
		require.Equal(t, protocol.Held, w.state("a"))
		require.Zero(t, w.stats().OverdueTotal)
	})
}

// The age of an alert is right according to the clock of Prometheus, even where ours is wrong, as long
// as those of the other holders show that.
func TestOverdueIsCorrectedByTheMedianOfTheHosts(t *testing.T) {
	for ours, others := range map[time.Duration]bool{0: false, 1: true, 3 * time.Second: true, time.Hour: true, -time.Hour: true} {
		inBubble(t, func(t *testing.T, w *world) {
			w.clock(ours)
			for _, host := range []string{"x", "y", "z"} {
				f := holder(0).takes(time.Minute, time.Hour)
				if f["hostname"] = host; others {
					w.live(w.put(host, f))
				}
			}
			w.live(w.put("slow", slow.takes(20*time.Second, time.Hour)))
			w.live(w.put("right", holder(0).takes(21*time.Second, time.Hour)))
			w.pass(30 * time.Second)
			s := w.stats()
			require.Equal(t, 2, s.OverdueTotal)
			for i, name := range []string{"slow", "right"} { // by the holders' clocks it is the other way round
				o := s.Overdue[i]
				require.Equal(t, name, o.Name)
				require.Equal(t, time.Duration(10-i)*time.Second, time.Duration(protocol.TimestampOf(present())-o.AlertAt())+o.Ahead)
			}
		})
	}
}

// The longest overdue come first after our clock was set, too.
func TestOverdueAreOrderedAgainAfterAStep(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.put("unknown", fields(10*time.Second, time.Hour))
		w.listing(false)
		w.live(w.put("slow", slow.takes(20*time.Second, time.Hour)))
		w.live(w.put("right", holder(0).takes(15*time.Second, time.Hour)))
		w.pass(time.Minute)
		order := func() (names []string) {
			for _, o := range w.stats().Overdue {
				names = append(names, o.Name)
			}
			return names
		}
		require.Equal(t, []string{"unknown", "right", "slow"}, order())
		w.clock(-7 * time.Second) // the lock of which no clock is known is overdue later
		require.Equal(t, []string{"right", "unknown", "slow"}, order())
		w.clock(-12 * time.Second)
		require.Equal(t, []string{"right", "slow", "unknown"}, order())
		w.clock(0)
		require.Equal(t, []string{"unknown", "right", "slow"}, order())
		for i := range 300 {
			name := fmt.Sprintf("%03d", i)
			events := w.put(name, slow.takes(-time.Duration(i*29%200)*time.Second, time.Hour))
			if i%2 == 0 {
				w.live(events)
			} else {
				w.replay(events)
			}
		}
		for _, ahead := range []time.Duration{time.Hour, -time.Hour, time.Minute, 0, day, -day, 0} {
			w.clock(ahead) // checks the order
		}
	})
}
