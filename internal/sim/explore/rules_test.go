package explore

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// rule is a rule that is taken out of the daemon, and where to look for the counterexample.
type rule struct {
	name string
	without
	scene
	kinds []string
}

func rules() []rule {
	alive, dead := scene{name: "alive", replicas: 1, offset: -tick / 2}, scene{name: "dead", replicas: 1, dies: 2}
	nearly, slow := dead, dead
	nearly.offset, slow.offset = -19*tick/10, -3*tick // within the tolerance, and beyond it
	later := scene{name: "dies later", replicas: 1, dies: 4}
	return []rule{
		{"patience", without{observation: func(o *verdict.Observation) { o.Measured, o.Late = true, false }}, slow, []string{"restarts"}},
		{"late knowledge", without{observation: func(o *verdict.Observation) { o.Late = false }}, later, []string{"clock is set", "watch lags"}},
		{"the clock observation", without{observation: func(o *verdict.Observation) { o.Offset = 0 }}, slow, nil},
		{"the outage allowance", without{allowance: true}, nearly, []string{"etcd stops"}},
		{"the probe that confirms", without{confirm: true}, nearly, []string{"alarm"}},
		{"settle", without{settle: true}, dead, []string{"alarm"}},
		{"the hold of an alarm", without{signals: func(s *verdict.Signals) { s.Alarms, s.Alarmed = nil, s.ListedAt }}, dead, []string{"alarm"}},
		{"freshness", without{signals: func(s *verdict.Signals) { s.LastSign = s.LastSign.Add(100 * tick) }}, dead, []string{"watch lags"}},
		{"the history of etcd", without{restored: true}, dead, []string{"restored"}},
		{"the last look at the gate", without{departure: true}, dead, []string{"stuck removal", "alarm"}},
		{"pauses", without{signals: func(s *verdict.Signals) { s.Paused = "" }, pauses: true}, dead, []string{"paused"}},
		{"the compare of the newest pause", without{pauses: true}, dead, []string{"paused", "late removal"}},
		{"the compares but that of the uuid", without{compare: butUUID}, alive, []string{"holder stalls", "late removal"}},
	}
}

// butUUID drops the compares of the newest revision and of the deadline: that of the uuid stays.
func butUUID(c *pb.Compare) bool { return !strings.HasSuffix(string(c.Key), "/uuid") }

// TestRulesHaveCounterexamples takes one rule at a time out of the daemon. The shortest history in which a promise is
// broken then is told in words; with the rule in place, it breaks none.
func TestRulesHaveCounterexamples(t *testing.T) {
	var told strings.Builder
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			found := explore(t, r.scene, r.without, 2, 1, r.kinds...)
			require.Len(t, found.broken, 1)
			w := found.broken[0]
			fmt.Fprintf(&told, "without %s:\n", r.name)
			for _, line := range w.story {
				fmt.Fprintln(&told, "  "+line)
			}
			synctest.Test(t, func(t *testing.T) {
				require.Empty(t, play(r.scene, without{}, w.made, 2*window+tail, newStates()).broken, "with the rule in place")
			})
		})
	}
	const golden = "testdata/counterexamples.txt"
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(golden, []byte(told.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), told.String())
}
