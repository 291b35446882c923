package helm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The chart has copies of these files: Helm prints a warning about each symbolic link in a chart.
// UPDATE=1 copies them.
func TestChartHasTheSharedFiles(t *testing.T) {
	for copied, source := range map[string]string{
		"unlocker.rules.yaml": "../prometheus/unlocker.rules.yaml",
		"dashboard.json":      "../grafana/unlocker.json",
	} {
		copied = filepath.Join("unlocker/files", copied)
		want, err := os.ReadFile(source)
		require.NoError(t, err)
		if os.Getenv("UPDATE") != "" {
			require.NoError(t, os.WriteFile(copied, want, 0o600))
		}
		got, err := os.ReadFile(copied)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%s differs from %s: run UPDATE=1 go test ./deploy/helm", copied, source)
	}
}

// The templates take the defaults of keys that are missing in config from config.example.yaml.
func TestTemplatesHaveTheDefaultsOfTheDaemon(t *testing.T) {
	example, found := readExample(t), 0
	paths, err := filepath.Glob("unlocker/templates/*.*")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`dig ((?:"[a-z_]+" )+)("[^"]*"|[0-9.]+|true|false) [.$]`).FindAllStringSubmatch(string(text), -1) {
			value, ok := lookUp(example, strings.Fields(strings.ReplaceAll(m[1], `"`, "")))
			if !ok {
				continue
			}
			require.Equal(t, fmt.Sprint(value), strings.Trim(m[2], `"`), "%s: %s", path, m[0])
			found++
		}
	}
	require.GreaterOrEqual(t, found, 15)
}

// lookUp returns the value of a key. It returns false if there is no such key, or if it is a section.
func lookUp(section map[string]any, path []string) (value any, ok bool) {
	value = section[path[0]]
	inner, isSection := value.(map[string]any)
	switch {
	case isSection && len(path) > 1:
		return lookUp(inner, path[1:])
	case isSection, len(path) > 1:
		return nil, false
	}
	return value, value != nil
}
