//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
		require.NotContains(t, pkg, "redis")
		require.False(t, strings.HasPrefix(pkg, "k8s.io/") && !strings.HasPrefix(pkg, "k8s.io/client-go/util/jsonpath") && pkg != "k8s.io/client-go/third_party/forked/golang/template", pkg)
	}
	info, err := os.Stat(unlocker)
	require.NoError(t, err)
	t.Logf("%.1f MiB", float64(info.Size())/(1<<20))
}

// Programs on Windows use the client; unlocker itself is not built for it.
func TestClientBuildsForWindows(t *testing.T) {
	t.Parallel()
	for _, module := range []string{"../mutex", "../mutex/otel", "../mutex/prom"} {
		vet := exec.CommandContext(t.Context(), "go", "-C", module, "vet", "./...")
		vet.Env = append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0")
		out, err := vet.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// The Makefile sets the version.
func TestBinaryHasItsVersion(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), unlocker, "version").Output()
	require.NoError(t, err)
	require.Regexp(t, `^unlocker, version \S+ \(branch: \S+, revision: \S+\)`, string(out))
}

// Every command has a manual page, which man shows without a warning.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	generate := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run", "^TestManualPages$", "../cmd/unlocker")
	generate.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1795219200", "MAN_DIR="+dir)
	out, err := generate.CombinedOutput()
	require.NoError(t, err, "%s", out)
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	require.NoError(t, err)
	for _, page := range pages {
		show := exec.CommandContext(t.Context(), "man", "--warnings", "-l", page)
		show.Env = append(os.Environ(), "MANWIDTH=100", "LC_ALL=C.UTF-8", "MANPAGER=cat")
		var text, warnings strings.Builder
		show.Stdout, show.Stderr = &text, &warnings
		require.NoError(t, show.Run(), warnings.String())
		require.Empty(t, warnings.String(), page)
		command := strings.Split(strings.TrimSuffix(filepath.Base(page), ".1"), "-")
		help, err := exec.CommandContext(t.Context(), unlocker, append(command[1:], "--help")...).Output()
		require.NoError(t, err)
		for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[\w-]+)`).FindAllStringSubmatch(string(help), -1) {
			require.Regexp(t, `(?m)^ +(-\w, )?`+flag[1]+`\b`, text.String(), page)
		}
		require.Contains(t, text.String(), "2026-11-21")
	}
	for _, name := range []string{"unlocker", "unlocker-list", "unlocker-config-check", "unlocker-lock"} {
		require.Contains(t, pages, filepath.Join(dir, name+".1"))
	}
}
