// Package explore plays all histories of a small world, up to a number of moves, in virtual time.
//
// A history is a scene, and moves at the ticks of a clock: a holder dies, etcd stops, a daemon is killed, its watch
// lags, its clock is set, a removal is late. Those with fewer moves come first, so the first that breaks a promise
// is one of the shortest; it is told as a story. The judges know what etcd executed and what the holders did. They
// judge S1, S2, S3 and S6.
//
// Real are the verdict, the holds and the gate, the table, the probe with its outages, the reaper and its
// transactions. Translated are etcd, the scanner (what is live, what is listed, when a restore is noticed), the
// pauses and the election.
//
// Guaranteed: each rule of TestRulesHaveCounterexamples is needed, and its story is the shortest with its moves.
//
// Not guaranteed: that nothing else is remembered than what look compares, where it ends a history because its state
// was seen. Times between the ticks, and more locks than one, are not explored: package sim does that at random.
package explore

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scenes are what all histories are explored from.
func scenes() []scene {
	nearly := -19 * tick / 10 // within the tolerance, which leaves a tenth of a tick between a holder's deadline and due
	return []scene{
		{name: "a holder lives", replicas: 1, offset: nearly},
		{name: "a holder dies", replicas: 1, dies: 2, offset: nearly},
		{name: "a holder with a slow clock dies", replicas: 1, dies: 4, offset: -3 * tick},
		{name: "a holder with a fast clock dies", replicas: 1, dies: 4, offset: 3 * tick},
		{name: "a holder that writes no stamps lives", replicas: 1, bare: true},
		{name: "a holder that writes no stamps dies", replicas: 1, dies: 4, bare: true},
		{name: "two replicas", replicas: 2, dies: 4, offset: nearly},
		{name: "around due", replicas: 1, dies: 2, offset: nearly, from: 5, to: 7, more: 1},
	}
}

// TestNoHistoryBreaksAPromise plays all histories of each scene with up to EXPLORE moves.
func TestNoHistoryBreaksAPromise(t *testing.T) {
	bound := 1
	if text := os.Getenv("EXPLORE"); text != "" {
		var err error
		bound, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := explore(t, s, without{}, bound+s.more, 10)
			t.Logf("up to %d moves: %d histories, %d states", bound+s.more, f.histories, len(f.seen.seen))
			for _, w := range f.broken {
				t.Errorf("%v\n%s", w.made, strings.Join(w.story, "\n"))
			}
		})
	}
}

// exploration plays all histories of a scene with up to a number of moves: first that without any, then those with one,
// and so on. So the first that breaks a promise is one of the shortest.
type exploration struct {
	t *testing.T
	scene
	without
	moves []move
	ends  int
	seen  states

	histories int
	broken    []*world
}

// branch is a history that may continue with other moves.
type branch struct {
	made []move
	next int // the index of the first move that may be added
	// known is the tick at which its state was that of one played before: later moves are added to that one.
	known int
}

// explore ends early when it has found limit histories that break a promise. kinds are those of the moves; none is all.
func explore(t *testing.T, s scene, out without, bound, limit int, kinds ...string) *exploration {
	e := &exploration{t: t, scene: s, without: out, moves: s.moves(kinds), ends: window + tail + 4*bound, seen: newStates()}
	level := []branch{e.play(branch{})}
	for n := 0; n < bound && len(e.broken) < limit; n++ {
		var longer []branch
		for _, p := range level {
			longer = e.extend(longer, p, limit)
		}
		level = longer
	}
	return e
}

// extend plays the histories of one move more than p, and appends those that may go on.
func (e *exploration) extend(level []branch, p branch, limit int) []branch {
	for i := p.next; i < len(e.moves) && len(e.broken) < limit; i++ {
		m := e.moves[i]
		if m.at > p.known || m.clashes(p.made) {
			continue
		}
		made := slices.Concat(p.made, []move{m})
		if longer := e.play(branch{made: made, next: i + 1}); longer.known >= m.at {
			level = append(level, longer)
		}
	}
	return level
}

// play plays a history, each in a bubble of its own, so that all begin at the same time.
func (e *exploration) play(p branch) branch {
	e.histories++
	p.known = math.MaxInt
	synctest.Test(e.t, func(*testing.T) {
		switch w := play(e.scene, e.without, p.made, e.ends, e.seen); {
		case w.broken != "":
			e.broken = append(e.broken, w)
			p.known = -1
		case w.known:
			p.known = w.tick - 1
		}
	})
	return p
}

// clashes reports whether a move cannot be made next to others.
func (m move) clashes(others []move) bool {
	for _, o := range others {
		same := o.name == m.name || strings.HasPrefix(o.name, "etcd") && strings.HasPrefix(m.name, "etcd")
		if same && o.replica == m.replica && (m.once || m.at <= o.at+o.ticks) {
			return true
		}
	}
	return false
}
