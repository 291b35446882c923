package docs_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write safety-tests.md")

// rule is a row of rules.yaml.
type rule struct {
	Rule        string
	Code, Tests []string
	More        int // tests that fail, too
	// Without is its name in HUNT_WITHOUT; Simulator and Hunt say what their judges found then.
	Without, Simulator, Hunt string
}

const safetyHead = `# Tests of the promises

<!-- Generated from rules.yaml and from the names of the tests. To write it: go test ./docs -update -->

The rules of [Safety](safety.md), and the tests that fail when one is removed from the code. Each rule was removed from
the function named here, and these tests failed. A change to a rule changes its row in rules.yaml. The last rows of a
promise list its other tests, by package: the tests of a promise carry its name.

*Simulator* is the promise that the judges of ` + "`TestJudgesConvict`" + ` report as broken, in the gate (` + "`make test`" + `). *Hunt*
is what the judges of the real hunt reported in one minute (` + "`HUNT_TIME=1m HUNT_WITHOUT=no-patience make hunt`" + `), and how
often; ` + "`make hunt-convict`" + ` requires it again each night. The history check was tried by hand in two minutes, as
` + "`TestRestores`" + ` runs its daemons in the process of the test: the gate holds it by the simulator.

| | rule | code | fails without it |
|---|---|---|---|
`

// TestSafetyTableIsGenerated holds the table of rules and tests to the code: every test of a promise
// is in it, and every test and function that it names exists.
func TestSafetyTableIsGenerated(t *testing.T) {
	text, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	var file struct {
		Also  map[string][]string
		Rules map[string][]rule
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	promises := slices.Sorted(maps.Keys(file.Rules))
	require.Equal(t, []string{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"}, promises)
	functions, tests := declared(t)
	removable, err := os.ReadFile("../hunt/without_test.go")
	require.NoError(t, err)

	page, named := safetyHead, map[string]bool{}
	for _, promise := range promises {
		for _, r := range file.Rules[promise] {
			require.NotEmpty(t, r.Tests, r.Rule)
			for _, f := range r.Code {
				require.True(t, functions[f], "rules.yaml: %s: there is no function %s", r.Rule, f)
			}
			for _, name := range r.Tests {
				require.NotEmpty(t, tests[name], "rules.yaml: %s: there is no test %s", r.Rule, name)
				named[name] = true
			}
			if r.Without != "" && !strings.Contains(r.Without, " ") {
				require.Contains(t, string(removable), `"`+r.Without+`":`)
			}
			page += fmt.Sprintf("| %s | %s | %s | %s |\n", promise, r.Rule, code(r.Code), r.fails())
		}
		others := map[string][]string{} // by package
		for _, name := range file.Also[promise] {
			require.NotEmpty(t, tests[name], "rules.yaml: there is no test %s", name)
			others[tests[name]] = append(others[tests[name]], name)
		}
		for name, dir := range tests {
			if strings.HasPrefix(name, "Test"+promise+"_") && !named[name] {
				others[dir] = append(others[dir], name)
			}
		}
		for _, dir := range slices.Sorted(maps.Keys(others)) {
			page += fmt.Sprintf("| %s | more tests in %s | | %s |\n", promise, dir, code(slices.Sorted(slices.Values(others[dir]))))
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("safety-tests.md", []byte(page), 0o644))
	}
	have, err := os.ReadFile("safety-tests.md")
	require.NoError(t, err)
	require.Equal(t, page, string(have), "write it: go test ./docs -update")
}

// fails is the last cell of the row.
func (r rule) fails() string {
	cell := code(r.Tests)
	if r.More > 0 {
		cell += fmt.Sprintf(" and %d more", r.More)
	}
	if r.Without != "" {
		cell += fmt.Sprintf(". Simulator: %s. Hunt (`%s`): %s", r.Simulator, r.Without, r.Hunt)
	}
	return cell
}

func code(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "`" + name + "`"
	}
	return strings.Join(quoted, ", ")
}

// declared returns the functions of the repository, and its tests with their directories.
func declared(t *testing.T) (functions map[string]bool, tests map[string]string) {
	t.Helper()
	re := regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)`)
	functions, tests = map[string]bool{}, map[string]string{}
	err := walk(func(path string, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range re.FindAllSubmatch(text, -1) {
			switch name := string(m[1]); {
			case !strings.HasSuffix(path, "_test.go"):
				functions[name] = true
			case strings.HasPrefix(name, "Test"):
				dir, _ := filepath.Rel("..", filepath.Dir(path))
				tests[name] = filepath.ToSlash(dir)
			}
		}
		return err
	})
	require.NoError(t, err)
	return functions, tests
}
