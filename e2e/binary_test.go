//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The binary does not contain what only the demo and the tests need.
func TestBinaryLinksNoServer(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../cmd/unlocker").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "go.etcd.io/etcd/client/v3\n")
	for pkg := range strings.Lines(string(out)) {
		pkg = strings.TrimSpace(pkg)
		require.False(t, strings.HasPrefix(pkg, "go.etcd.io/etcd/server"), pkg)
		require.False(t, strings.HasPrefix(pkg, "go.etcd.io/bbolt"), pkg)
		require.False(t, pkg == "testing" || strings.HasPrefix(pkg, "testing/"), pkg)
		require.NotContains(t, pkg, "localetcd")
		require.NotContains(t, pkg, "stretchr/testify")
	}
	info, err := os.Stat(unlocker)
	require.NoError(t, err)
	t.Logf("%.1f MiB", float64(info.Size())/(1<<20))
}

// The Makefile sets the version.
func TestBinaryHasItsVersion(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), unlocker, "version").Output()
	require.NoError(t, err)
	require.Regexp(t, `^unlocker, version \S+ \(branch: \S+, revision: \S+\)`, string(out))
}
