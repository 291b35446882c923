//go:build hunt

package hunt

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// build builds the daemon with a clock that can be set, and with further edits of its sources.
func build(t *testing.T, edits ...edit) (binary string) {
	t.Helper()
	dir, root := t.TempDir(), goroot(t)
	clock, err := filepath.Abs(filepath.Join("testdata", "clock.go"))
	require.NoError(t, err)
	now := filepath.Join(root, "src", "time", "time.go")
	overlay := map[string]string{filepath.Join(filepath.Dir(now), "zz_clock.go"): clock}
	for i, e := range append(edits, edit{now, "sec += unixToInternal - minWall", "sec += ahead.Load() + unixToInternal - minWall"}) {
		path, err := filepath.Abs(e.path)
		require.NoError(t, err)
		overlay[path] = filepath.Join(dir, strconv.Itoa(i)+".go")
		require.NoError(t, os.WriteFile(overlay[path], []byte(e.apply(t)), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	file := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	binary = filepath.Join(dir, "unlocker")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", binary, "../cmd/unlocker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

func goroot(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
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
