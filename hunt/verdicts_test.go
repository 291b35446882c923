//go:build hunt

package hunt

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// What the hunt is to find, it finds.
func TestTheJudgeConvicts(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		offset  time.Duration
		ended   time.Time
		outages []span
		quiet   span
		guilty  int
	}{
		"in time":                           {ended: at(4)},
		"early":                             {ended: at(2.9), guilty: 1},
		"in time for us, not for the owner": {offset: -10 * time.Second, ended: at(5), guilty: 1},
		"an outage counted against it":      {ended: at(4), outages: []span{{at(1), at(3)}}, guilty: 1},
		"an outage that did not count":      {ended: at(6), outages: []span{{at(1), at(3)}}},
		"an outage before the last write":   {ended: at(4), outages: []span{{at(-4), at(-1)}}},
		"late":                              {ended: at(70), quiet: span{at(10), at(60)}, guilty: 1},
		"late, with faults":                 {ended: at(70), quiet: span{at(10), at(25)}},
		"never":                             {quiet: span{at(10), at(60)}, guilty: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{quiets: []span{c.quiet}}
			l := &life{owner: &owner{offset: c.offset}, span: 3 * time.Second, stopped: start}
			n := &tenure{created: start, dated: start, written: start, ended: c.ended, forced: !c.ended.IsZero()}
			n.autoUnlock = float64(at(3).UnixMicro()) / 1e6
			w.judgeOne(n, l, c.outages)
			require.Len(t, w.violations, c.guilty)
		})
	}
}

func TestExclusionConvicts(t *testing.T) {
	start := time.Unix(0, 0)
	ops := func(kinds ...op) (history []porcupine.Operation) {
		for i, o := range kinds {
			at := start.Add(time.Duration(i) * time.Second)
			history = append(history, porcupine.Operation{Input: o, Call: at.UnixNano(), Return: at.UnixNano() + 1})
		}
		return history
	}
	for name, c := range map[string]struct {
		history []porcupine.Operation
		legal   bool
	}{
		"one after the other": {ops(op{kind: took, token: 1}, op{kind: alive, token: 1}, op{kind: ended, token: 1}, op{kind: took, token: 2}), true},
		"two at a time":       {ops(op{kind: took, token: 1}, op{kind: took, token: 2}), false},
		"renewed when gone":   {ops(op{kind: took, token: 1}, op{kind: ended, token: 1}, op{kind: alive, token: 1}), false},
		"met when gone":       {ops(op{kind: took, token: 1}, op{kind: ended, token: 1}, op{kind: met, token: 1}), false},
		"lost when held":      {ops(op{kind: took, token: 1}, op{kind: lost, token: 1}), false},
	} {
		require.Equal(t, c.legal, porcupine.CheckOperations(exclusion(), c.history), name)
	}
}

// A hold of a daemon that is no more excuses nobody.
func TestHeldEndsWithTheDaemon(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	dead := &daemon{log: &journal{holds: []holding{{at(1), 1}}, ended: at(3)}}
	next := &daemon{log: &journal{holds: []holding{{at(4), 1}, {at(5), 0}}}}
	quiet := span{at(2), at(20)}
	w := &world{slots: []*slot{{past: []*daemon{dead, next}}}}
	require.Equal(t, at(5), w.allHeld(quiet))
	w.slots[0].past = w.slots[0].past[:1]
	require.Equal(t, at(3), w.allHeld(quiet))
}
