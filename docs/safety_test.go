package docs_test

import (
	"bytes"
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
	// TakeOut are edits of the code, each of which takes the rule out, or a part of it.
	TakeOut []edit `yaml:"take_out"`
}

// edit replaces text in a package. It must be there exactly once, in whichever file. Also are those of other places that
// hold the rule. Random histories convict what is Random without it.
type edit struct {
	In, Text, To string
	Also         []edit
	Random       bool
}

// apply returns the files that have the texts, with the edit, by path.
func (e edit) apply() (map[string]string, error) {
	edited := make(map[string]string)
	for _, e := range append([]edit{e}, e.Also...) {
		files, err := filepath.Glob(filepath.Join("..", e.In, "*.go"))
		if err != nil {
			return nil, err
		}
		found := 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, before := edited[file]
			if !before {
				read, err := os.ReadFile(file)
				if err != nil {
					return nil, err
				}
				text = string(read)
			}
			if n := strings.Count(text, e.Text); n > 0 {
				found += n
				edited[file] = strings.Replace(text, e.Text, e.To, 1)
			}
		}
		if found != 1 {
			return nil, fmt.Errorf("%s has %d times, not once, the text %q", e.In, found, e.Text)
		}
	}
	return edited, nil
}

// readRules returns the rules by promise, and further tests.
func readRules(t *testing.T) (rules map[string][]rule, also map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	var file struct {
		Also  map[string][]string
		Rules map[string][]rule
	}
	in := yaml.NewDecoder(bytes.NewReader(text))
	in.KnownFields(true)
	require.NoError(t, in.Decode(&file))
	return file.Rules, file.Also
}

const safetyHead = `# Tests of the promises

<!-- Generated from rules.yaml and from the names of the tests. To write it: go test ./docs -update -->

The rules of [Safety](safety.md), and of the Go client, and the tests that fail when one is removed from the code. Each
rule was removed from the function named here, and these tests failed; ` + "`make mutants`" + ` does so each night where the
last column says so. A change to a rule changes its row in rules.yaml. The last rows of a promise list its other tests,
by package: the tests of a promise carry its name.

*Simulator* is the promise that the judges of ` + "`TestJudgesConvict`" + ` report as broken, in the gate (` + "`make test`" + `). *Hunt*
is what the judges of the real hunt reported in one minute (` + "`HUNT_TIME=1m HUNT_WITHOUT=no-patience make hunt`" + `), and how
often; ` + "`make hunt-convict`" + ` requires it again each night. The history check was tried by hand in two minutes, as
` + "`TestRestores`" + ` runs its daemons in the process of the test: the gate holds it by the simulator.

| | rule | code | fails without it | each night |
|---|---|---|---|---|
`

// TestSafetyTableIsGenerated holds the table of rules and tests to the code: every test of a promise
// is in it, and every test and function that it names exists.
func TestSafetyTableIsGenerated(t *testing.T) {
	rules, also := readRules(t)
	promises := slices.Sorted(maps.Keys(rules))
	require.Equal(t, []string{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "client"}, promises)
	functions, tests := declared(t)

	page, named := safetyHead, map[string]bool{}
	for _, promise := range promises {
		for _, r := range rules[promise] {
			require.NotEmpty(t, r.Tests, r.Rule)
			for _, f := range r.Code {
				require.True(t, functions[f], "rules.yaml: %s: there is no function %s", r.Rule, f)
			}
			for _, name := range r.Tests {
				require.NotEmpty(t, tests[name], "rules.yaml: %s: there is no test %s", r.Rule, name)
				named[name] = true
			}
			if r.Without != "" && !strings.Contains(r.Without, " ") {
				require.NotEmpty(t, r.TakeOut, "rules.yaml: %s: make hunt-convict needs its take_out", r.Rule)
			}
			tried := ""
			for _, e := range r.TakeOut {
				_, err := e.apply()
				require.NoError(t, err, "rules.yaml: %s: adapt take_out", r.Rule)
				tried = "yes"
			}
			page += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", promise, r.Rule, code(r.Code), r.fails(), tried)
		}
		others := map[string][]string{} // by package
		for _, name := range also[promise] {
			require.NotEmpty(t, tests[name], "rules.yaml: there is no test %s", name)
			others[tests[name][0]] = append(others[tests[name][0]], name)
		}
		for name, dirs := range tests {
			if strings.HasPrefix(name, "Test"+promise+"_") && !named[name] {
				others[dirs[0]] = append(others[dirs[0]], name)
			}
		}
		for _, dir := range slices.Sorted(maps.Keys(others)) {
			page += fmt.Sprintf("| %s | more tests in %s | | %s | |\n", promise, dir, code(slices.Sorted(slices.Values(others[dir]))))
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

// declared returns the functions of the repository, and its tests with the directories that have one of that name.
func declared(t *testing.T) (functions map[string]bool, tests map[string][]string) {
	t.Helper()
	re := regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)`)
	functions, tests = map[string]bool{}, map[string][]string{}
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
				tests[name] = append(tests[name], filepath.ToSlash(dir))
			}
		}
		return err
	})
	require.NoError(t, err)
	return functions, tests
}
