//go:build nightly

package docs_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMutants takes the rules of rules.yaml out of the code, one edit of take_out at a time, and runs the tests of the
// row. At least one of them must fail for each edit, and each of them for at least one edit.
//
//	make mutants RULES='S3/paused'
func TestMutants(t *testing.T) {
	rules, _ := readRules(t)
	_, dirs := declared(t)
	table := each(t, rules, func(t *testing.T, r rule) []string { return r.try(t, dirs) })
	t.Logf("%d edits\n%s", len(table), strings.Join(table, "\n"))
}

// TestSimulated runs SIM_HISTORIES random histories of the simulator, or of the Go client, for each edit of what they
// run, and counts the edits of which these show nothing. Those that are marked as random must be shown.
func TestSimulated(t *testing.T) {
	if os.Getenv("SIM_HISTORIES") == "" {
		t.Skip("without SIM_HISTORIES")
	}
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "../internal/sim").Output()
	require.NoError(t, err)
	t.Setenv("MUTEX_HISTORIES", os.Getenv("SIM_HISTORIES"))
	convicts := func(t *testing.T, overlay, dir string) bool {
		if dir == "mutex" {
			return fails(t, build(t, overlay, dir), dir, "TestOneHolderAtATime", "-test.timeout=1h")
		}
		return fails(t, build(t, overlay, "internal/sim"), "internal/sim", "TestRandomHistories", "-rapid.seed=1", "-rapid.shrinktime=0s", "-test.timeout=1h")
	}
	require.False(t, convicts(t, "", "mutex") || convicts(t, "", "internal/sim"), "the daemon or the client as it is breaks a promise")
	rules, _ := readRules(t)
	var survivors atomic.Int64
	table := each(t, rules, func(t *testing.T, r rule) (lines []string) {
		for i, e := range r.TakeOut {
			if e.In != "mutex" && !strings.Contains(string(deps), "/unlocker/"+e.In+"\n") {
				continue
			}
			outcome := "killed"
			if !convicts(t, e.overlay(t), e.In) {
				outcome = "survives"
				survivors.Add(1)
				if e.Random {
					t.Errorf("edit %d of %s: random histories show nothing without %q", i+1, e.In, e.Text)
				}
			}
			lines = append(lines, fmt.Sprintf("edit %d: %s", i+1, outcome))
		}
		return lines
	})
	t.Logf("%d of %d edits survive %s histories\n%s", survivors.Load(), len(table), os.Getenv("SIM_HISTORIES"), strings.Join(table, "\n"))
}

// each calls do for each rule that has edits, several at a time, and returns the lines about all of them.
func each(t *testing.T, rules map[string][]rule, do func(*testing.T, rule) []string) (table []string) {
	var mu sync.Mutex
	t.Run("all", func(t *testing.T) { // returns when the parallel ones have
		for _, promise := range slices.Sorted(maps.Keys(rules)) {
			t.Run(promise, func(t *testing.T) {
				for _, r := range rules[promise] {
					t.Run(r.Rule, func(t *testing.T) {
						t.Parallel()
						lines := do(t, r)
						mu.Lock()
						defer mu.Unlock()
						for _, line := range lines {
							table = append(table, fmt.Sprintf("%-6s %s: %s", promise, r.Rule, line))
						}
					})
				}
			})
		}
	})
	slices.Sort(table)
	return table
}

// try tries each edit, and returns a line about each.
func (r rule) try(t *testing.T, dirs map[string][]string) (lines []string) {
	survived := slices.Clone(r.Tests)
	for i, e := range r.TakeOut {
		start := time.Now()
		failed := r.failing(t, e, dirs)
		if len(failed) == 0 {
			t.Errorf("edit %d of %s: SURVIVED: none of %v fails without %q", i+1, e.In, r.Tests, e.Text)
		}
		survived = slices.DeleteFunc(survived, func(name string) bool { return slices.Contains(failed, name) })
		lines = append(lines, fmt.Sprintf("edit %d, %.0f s: %s", i+1, time.Since(start).Seconds(), strings.Join(failed, ", ")))
	}
	if len(survived) > 0 && len(r.TakeOut) > 0 {
		t.Errorf("%v fail without no edit of the row", survived)
	}
	return lines
}

// failing returns which tests of the row fail with the edit.
func (r rule) failing(t *testing.T, e edit, dirs map[string][]string) (failed []string) {
	overlay, programs := e.overlay(t), map[string]string{} // by directory
	for _, name := range r.Tests {
		for _, dir := range dirs[name] {
			if programs[dir] == "" {
				programs[dir] = build(t, overlay, dir)
			}
			if fails(t, programs[dir], dir, name) && !slices.Contains(failed, name) {
				failed = append(failed, name)
			}
		}
	}
	for _, program := range programs {
		require.NoError(t, os.Remove(program))
	}
	return failed
}

// overlay returns a file for the flag of that name of go build, which has the edit.
func (e edit) overlay(t *testing.T) string {
	files, err := e.apply()
	require.NoError(t, err)
	replace := make(map[string]string)
	for file, text := range files {
		file, err = filepath.Abs(file)
		require.NoError(t, err)
		replace[file] = filepath.Join(t.TempDir(), "edited.go")
		require.NoError(t, os.WriteFile(replace[file], []byte(text), 0o644))
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o644))
	return overlay
}

// build returns the test program of a directory.
func build(t *testing.T, overlay, dir string) string {
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, ".")
	cmd.Dir = filepath.Join("..", dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s with the edit: %s", dir, out)
	return program
}

// fails reports whether a test fails, or does not end.
func fails(t *testing.T, program, dir, name string, args ...string) bool {
	args = append([]string{"-test.run", "^" + name + "$", "-test.timeout", "4m", "-test.v"}, args...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = filepath.Join("..", dir)
	out, err := cmd.CombinedOutput()
	require.Contains(t, string(out), "=== RUN   "+name, "not run: %s", out)
	return err != nil
}
