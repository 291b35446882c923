//go:build hunt

package hunt

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
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
		"in time":                               {ended: at(4)},
		"early":                                 {ended: at(2.9), want: 1},
		"early according to the holder's clock": {offset: -10 * time.Second, ended: at(5), want: 1},
		"its clock was set back":                {steps: []step{{at(1), -10 * time.Second}}, ended: at(4)},
		"its clock was set right":               {offset: -10 * time.Second, steps: []step{{at(1), 0}}, ended: at(4)},
		"early by all that its clock was":       {offset: -10 * time.Second, steps: []step{{at(1), -5 * time.Second}}, ended: at(4), want: 1},
		"its clock is set later":                {offset: -10 * time.Second, steps: []step{{at(5), 0}}, ended: at(4), want: 1},
		"an outage without an allowance":        {ended: at(4), outages: []span{{From: at(1), To: at(3)}}, want: 1},
		"an outage with an allowance":           {ended: at(6), outages: []span{{From: at(1), To: at(3)}}},
		"an outage before the last write":       {ended: at(4), outages: []span{{From: at(-4), To: at(-1)}}},
		"a short outage":                        {ended: at(4), outages: []span{{From: at(1), To: at(2.3)}}},
		"late":                                  {ended: at(70), quiet: span{From: at(10), To: at(60)}, want: 1},
		"late, with faults":                     {ended: at(70), quiet: span{From: at(10), To: at(25)}},
		"late, with an allowance":               {ended: at(70), outages: []span{{From: at(-15), To: at(12)}}, quiet: span{From: at(10), To: at(50)}},
		"never":                                 {quiet: span{From: at(10), To: at(60)}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{quiets: []span{c.quiet}, outages: c.outages}
			l := &acquisition{holder: holderWith(c.offset, c.steps...), span: 3 * time.Second, first: start, stopped: start}
			n := &lifetime{Lock: lockWith(at(3)), created: start, dated: start, written: start, ended: c.ended, forced: !c.ended.IsZero()}
			w.checkLifetime(n, l)
			require.Len(t, w.violations, c.want)
		})
	}
}

// lockWith returns a lock with the keys and the deadline of the only acquisition.
func lockWith(deadline time.Time) *judges.Lock {
	l := judges.NewLock("a")
	for field, value := range map[string]string{"uuid": "u", "auto_unlock_at": etcdtest.Stamp(deadline)} {
		l.Fields[field] = &mvccpb.KeyValue{Value: []byte(value), CreateRevision: 3, ModRevision: 3}
	}
	return l
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
	quiet := span{From: at(2), To: at(20)}
	w := &world{slots: []*slot{{past: []*daemon{dead, next}}}}
	require.Equal(t, at(5), w.lastCommonHold(quiet))
	w.slots[0].past = w.slots[0].past[:1]
	require.Equal(t, at(3), w.lastCommonHold(quiet))
}
