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
	"go.yaml.in/yaml/v3"
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

// edit replaces text in a source file. The text must be there exactly once.
type edit struct{ path, from, to string }

// apply returns the source file with the edit.
func (e edit) apply(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(e.path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), e.from), "%s has other text than %q", e.path, e.from)
	return strings.Replace(string(text), e.from, e.to, 1)
}

// without returns the edit that HUNT_WITHOUT asks for: the first one of the row of docs/rules.yaml with that name.
func without(t *testing.T) (edits []edit) {
	t.Helper()
	name := os.Getenv("HUNT_WITHOUT")
	if name == "" {
		return nil
	}
	text, err := os.ReadFile("../docs/rules.yaml")
	require.NoError(t, err)
	var file struct {
		Rules map[string][]struct {
			Without string
			TakeOut []struct{ In, Text, To string } `yaml:"take_out"`
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, rows := range file.Rules {
		for _, r := range rows {
			if r.Without == name {
				out := r.TakeOut[0]
				edits = append(edits, edit{fileWith(t, filepath.Join("..", out.In), out.Text), out.Text, out.To})
			}
		}
	}
	require.Len(t, edits, 1, "no row of docs/rules.yaml is without: %s", name)
	return edits
}

// fileWith returns the file of a package that has a text.
func fileWith(t *testing.T, dir, text string) (path string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(source), text) {
			return file
		}
	}
	require.Fail(t, "text not found", "%s: %q", dir, text)
	return ""
}
