//go:build hunt

package hunt

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// rules are the rules that HUNT_WITHOUT can take out of the daemon, so that a hunt must fail.
var rules = map[string]edit{
	"no-holds": {"../internal/reaper/gate.go", "return !s.Overdue && (len(found) == 0 || dry && len(found) == 1)", "return dry || !s.Overdue"},
	"no-overdue-probe": {"../internal/reaper/gate.go", "return !s.Overdue && (len(found) == 0 || dry && len(found) == 1)",
		"return len(found) == 0 || dry && len(found) == 1"},
	"no-patience":         {"../internal/verdict/verdict.go", "if in.Late || !in.Measured {", "if false {"},
	"no-outage-allowance": {"../internal/verdict/verdict.go", "plus(plus(base, in.Allowance), in.StormDelay)", "plus(base, in.StormDelay)"},
	"no-standby-delay":    {"../internal/verdict/verdict.go", "plus(v.Remaining, in.StandbyDelay)", "v.Remaining"},
	"no-log-before-send":  {"../internal/reaper/outcome.go", "return w.journal.announce(w.requests, r)", "return nil"},
	"no-uuid-compare":     {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.Value(uuid), "=", r.UUID())`, `clientv3.Compare(clientv3.Version(uuid), ">", 0)`},
	"no-deadline-compare": {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.Value(deadline), "=", r.AutoUnlockText())`, `clientv3.Compare(clientv3.Version(deadline), ">", 0)`},
	"no-history-check":    {"../internal/scan/history.go", "doubts := s.history.doubted()", "doubts := s.history.doubted()[:0]"},
	"no-newest-revision-compare": {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.ModRevision(s.from), "<", r.Revision+1)`,
		`clientv3.Compare(clientv3.ModRevision(s.from), ">", 0)`},
}

// without returns the edit that HUNT_WITHOUT asks for.
func without(t *testing.T) (edits []edit) {
	t.Helper()
	name := os.Getenv("HUNT_WITHOUT")
	if name == "" {
		return nil
	}
	require.Contains(t, rules, name)
	return []edit{rules[name]}
}

// Each rule can still be taken out.
func TestRulesAreFound(t *testing.T) {
	for name, e := range rules {
		t.Run(name, func(t *testing.T) { require.Contains(t, e.apply(t), e.to) })
	}
}
