//go:build go1.25

package mutex_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDependencies holds what a program links that imports only this package.
func TestDependencies(t *testing.T) {
	t.Parallel()
	const module = "github.com/etcd-unlocker/unlocker/"
	for pkg, ours := range map[string][]string{
		"mutex":           {"mutex/protocol", "mutex"},
		"mutex/mutextest": {"mutex/protocol", "mutex/mutextest/memetcd", "mutex", "mutex/mutextest"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+pkg).CombinedOutput()
		require.NoError(t, err, string(out))
		var found []string
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			for _, heavy := range []string{"prometheus", "viper", "etcd/server", "cobra", "opentelemetry", "testify", "redis", "redsync"} {
				require.NotContains(t, dep, heavy)
			}
			if own, is := strings.CutPrefix(dep, module); is {
				found = append(found, own)
			}
		}
		require.ElementsMatch(t, ours, found)
	}
}
