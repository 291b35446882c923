//go:build hunt

package hunt

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// The checks find the violations that they must find.
func TestChecksFindViolations(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		offset  time.Duration
		steps   []step
		ended   time.Time
		outages []span
		quiet   span
		want    int
	}{
		"in time":                          {ended: at(4)},
		"early":                            {ended: at(2.9), want: 1},
		"early by the clock of the holder": {offset: -10 * time.Second, ended: at(5), want: 1},
		"its clock was set back":           {steps: []step{{at(1), -10 * time.Second}}, ended: at(4)},
		"its clock was set right":          {offset: -10 * time.Second, steps: []step{{at(1), 0}}, ended: at(4)},
		"early by all that its clock was":  {offset: -10 * time.Second, steps: []step{{at(1), -5 * time.Second}}, ended: at(4), want: 1},
		"its clock is set later":           {offset: -10 * time.Second, steps: []step{{at(5), 0}}, ended: at(4), want: 1},
		"an outage without an allowance":   {ended: at(4), outages: []span{{at(1), at(3)}}, want: 1},
		"an outage with an allowance":      {ended: at(6), outages: []span{{at(1), at(3)}}},
		"an outage before the last write":  {ended: at(4), outages: []span{{at(-4), at(-1)}}},
		"a short outage":                   {ended: at(4), outages: []span{{at(1), at(2.3)}}},
		"late":                             {ended: at(70), quiet: span{at(10), at(60)}, want: 1},
		"late, with faults":                {ended: at(70), quiet: span{at(10), at(25)}},
		"late, with an allowance":          {ended: at(70), outages: []span{{at(-15), at(12)}}, quiet: span{at(10), at(50)}},
		"never":                            {quiet: span{at(10), at(60)}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{quiets: []span{c.quiet}, outages: c.outages}
			l := &acquisition{holder: holderWith(c.offset, c.steps...), span: 3 * time.Second, first: start, stopped: start}
			n := &lifetime{created: start, dated: start, written: start, ended: c.ended, forced: !c.ended.IsZero()}
			n.autoUnlock = float64(at(3).UnixMicro()) / 1e6
			w.checkLifetime(n, l)
			require.Len(t, w.violations, c.want)
		})
	}
}

func holderWith(offset time.Duration, steps ...step) *holder {
	return &holder{clock: &clock{steps: append([]step{{ahead: offset}}, steps...)}}
}

func TestExclusionFindsViolations(t *testing.T) {
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
		"one after the other": {ops(op{kind: acquired, token: 1}, op{kind: renewed, token: 1}, op{kind: freed, token: 1}, op{kind: acquired, token: 2}), true},
		"two at a time":       {ops(op{kind: acquired, token: 1}, op{kind: acquired, token: 2}), false},
		"renewed when gone":   {ops(op{kind: acquired, token: 1}, op{kind: freed, token: 1}, op{kind: renewed, token: 1}), false},
		"observed when gone":  {ops(op{kind: acquired, token: 1}, op{kind: freed, token: 1}, op{kind: observed, token: 1}), false},
		"lost when held":      {ops(op{kind: acquired, token: 1}, op{kind: lost, token: 1}), false},
	} {
		require.Equal(t, c.legal, porcupine.CheckOperations(exclusion(), c.history), name)
	}
}

// The holds of a daemon end when it ends.
func TestHoldsEndWithTheDaemon(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	dead := &daemon{log: &journal{holds: []holdCount{{at(1), 1}}, ended: at(3)}}
	next := &daemon{log: &journal{holds: []holdCount{{at(4), 1}, {at(5), 0}}}}
	quiet := span{at(2), at(20)}
	w := &world{slots: []*slot{{past: []*daemon{dead, next}}}}
	require.Equal(t, at(5), w.lastCommonHold(quiet))
	w.slots[0].past = w.slots[0].past[:1]
	require.Equal(t, at(3), w.lastCommonHold(quiet))
}
