package hunt

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// edit replaces text in a source file of the daemon. The text must be there exactly once.
type edit struct{ path, from, to string }

// rules are the rules that HUNT_WITHOUT can take out of the daemon, so that a hunt must fail.
var rules = map[string]edit{
	"no-holds":            {"../internal/reaper/gate.go", "open = open && !kind.Stops", "_ = kind.Stops"},
	"no-overdue-probe":    {"../internal/reaper/gate.go", "open := !s.Overdue", "open := true"},
	"no-patience":         {"../internal/verdict/verdict.go", "if in.Late || !in.Measured {", "if false {"},
	"no-outage-allowance": {"../internal/verdict/verdict.go", "plus(in.AutoUnlockAt.Add(in.Grace).Sub(in.Now), in.Allowance)", "in.AutoUnlockAt.Add(in.Grace).Sub(in.Now)"},
	"no-standby-delay":    {"../internal/verdict/verdict.go", "plus(v.Remaining, in.StandbyDelay)", "v.Remaining"},
	"no-log-before-send":  {"../internal/reaper/outcome.go", "return w.journal.announce(ctx, r)", "return nil"},
	"no-uuid-compare":     {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.Value(uuid), "=", r.UUID())`, `clientv3.Compare(clientv3.Version(uuid), ">", 0)`},
	"no-deadline-compare": {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.Value(deadline), "=", r.AutoUnlockText())`, `clientv3.Compare(clientv3.Version(deadline), ">", 0)`},
	"no-history-check":    {"../internal/scan/history.go", "doubts := s.history.doubted()", "doubts := s.history.doubted()[:0]"},
	"no-newest-revision-compare": {"../internal/lockstore/txn.go", `clientv3.Compare(clientv3.ModRevision(s.from), "<", r.Revision+1)`,
		`clientv3.Compare(clientv3.ModRevision(s.from), ">", 0)`},
}

// Each rule can still be taken out.
func TestRulesAreFound(t *testing.T) {
	for name, e := range rules {
		t.Run(name, func(t *testing.T) { require.Contains(t, e.apply(t), e.to) })
	}
}

// apply returns the source file with the edit.
func (e edit) apply(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(e.path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), e.from), "%s has other text than %q", e.path, e.from)
	return strings.Replace(string(text), e.from, e.to, 1)
}
