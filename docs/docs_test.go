package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// walk calls f for all of the repository but .git, whose directories come and go.
func walk(f func(path string, err error) error) error {
	return filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if e != nil && e.IsDir() && e.Name() == ".git" {
			return filepath.SkipDir
		}
		return f(path, err)
	})
}

// TestImagesOfTheDocsExist finds pictures that were renamed or never committed.
func TestImagesOfTheDocsExist(t *testing.T) {
	image, found := regexp.MustCompile(`!\[[^\]]*\]\(([^)\s]+)\)`), 0
	err := walk(func(path string, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range image.FindAllSubmatch(text, -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(path), string(m[1])), path)
			found++
		}
		return err
	})
	require.NoError(t, err)
	require.NotZero(t, found)
}

// TestTestsNamedInTheDocsExist keeps the tables of tests true.
func TestTestsNamedInTheDocsExist(t *testing.T) {
	named, declared := regexp.MustCompile("`(Test\\w+)`"), regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests, wanted := map[string]bool{}, map[string]string{}
	err := walk(func(path string, err error) error {
		test, page := strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".md")
		if err != nil || !test && !page {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if test {
			for _, m := range declared.FindAllSubmatch(text, -1) {
				tests[string(m[1])] = true
			}
			return nil
		}
		for _, m := range named.FindAllSubmatch(text, -1) {
			wanted[string(m[1])] = path
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, wanted)
	for name, page := range wanted {
		require.True(t, tests[name], "%s names %s", page, name)
	}
}

// TestWorkflowsOnlyCallTheGate keeps what CI does in the repository, where anyone can run it.
func TestWorkflowsOnlyCallTheGate(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	require.NoError(t, err)
	var runs []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		var workflow struct {
			Jobs map[string]struct{ Steps []struct{ Run string } }
		}
		require.NoError(t, yaml.Unmarshal(text, &workflow), f)
		for _, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if step.Run != "" {
					runs = append(runs, step.Run)
				}
			}
		}
	}
	require.FileExists(t, "../.ci/nightly")
	require.ElementsMatch(t, []string{".ci/run", ".ci/nightly", "make release"}, runs)
}
