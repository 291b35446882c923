//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	rulesFile = "../deploy/prometheus/unlocker.rules.yaml"
	runbooks  = "../docs/runbooks"
	published = "https://github.com/etcd-unlocker/unlocker/blob/main/docs/runbooks/"
)

// rule is an alerting or a recording rule. A recording rule has no Alert.
type rule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) (alerts []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	readYAML(t, rulesFile, &file)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				alerts = append(alerts, r)
			}
		}
	}
	require.NotEmpty(t, alerts)
	return alerts
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, into), path)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.NotEmpty(t, paths, pattern)
	return paths
}

// run runs a tool that checks files, requires that it succeeds, and returns its output.
func run(t *testing.T, name string, args ...string) (out string) {
	t.Helper()
	raw, err := exec.CommandContext(t.Context(), program(t, name), args...).CombinedOutput()
	require.NoError(t, err, "%s", raw)
	return string(raw)
}

// The rules, their own tests, and the examples next to them.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	require.Contains(t, run(t, "promtool", "check", "rules", rulesFile), "rules found")
	tests := glob(t, "../deploy/prometheus/tests/*.yaml")
	out := run(t, "promtool", append([]string{"test", "rules"}, tests...)...)
	require.Equal(t, len(tests), strings.Count(out, "SUCCESS"), out)
	require.Contains(t, run(t, "promtool", "check", "config", "../deploy/prometheus/prometheus.example.yaml"), "SUCCESS")
	require.Contains(t, run(t, "amtool", "check-config", "../deploy/prometheus/alertmanager.example.yaml"), "SUCCESS")
}

// Every alert has a severity, texts, a link to its runbook and, unless no daemon may be there to
// answer, one to the daemon.
func TestAlertsAreComplete(t *testing.T) {
	for _, a := range readAlerts(t) {
		require.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"], a.Alert)
		names := []string{"description", "runbook_url", "summary"}
		if a.Alert != "UnlockerDown" {
			names = append(names, "dashboard_url")
			require.True(t, strings.HasPrefix(a.Annotations["dashboard_url"], "http://unlocker.example.com/"), a.Alert)
		}
		require.ElementsMatch(t, names, slices.Collect(maps.Keys(a.Annotations)), a.Alert)
		require.NotContains(t, slices.Collect(maps.Values(a.Annotations)), "", a.Alert)
		require.Equal(t, published+a.Alert+".md", a.Annotations["runbook_url"])
	}
}

// Each alert has a test in which it fires and one in which it does not.
func TestAlertsAreTestedInBothDirections(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, path := range glob(t, "../deploy/prometheus/tests/*.yaml") {
		var file struct {
			Tests []struct {
				Cases []struct {
					Alert  string `yaml:"alertname"`
					Alerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		readYAML(t, path, &file)
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				fires[c.Alert] = fires[c.Alert] || len(c.Alerts) > 0
				silent[c.Alert] = silent[c.Alert] || len(c.Alerts) == 0
			}
		}
	}
	for _, a := range readAlerts(t) {
		require.True(t, fires[a.Alert], "%s never fires in a test", a.Alert)
		require.True(t, silent[a.Alert], "%s is never silent in a test", a.Alert)
		delete(fires, a.Alert)
	}
	require.Empty(t, fires, "tests of alerts that do not exist")
}

// Each alert has a page that is in the index, and each page has an alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(runbooks, "README.md"))
	require.NoError(t, err)
	pages := glob(t, filepath.Join(runbooks, "Unlocker*.md"))
	for _, a := range readAlerts(t) {
		page, err := os.ReadFile(filepath.Join(runbooks, a.Alert+".md"))
		require.NoError(t, err)
		headings := regexp.MustCompile(`(?m)^#+ .*$`).FindAllString(string(page), -1)
		require.Equal(t, []string{"# " + a.Alert, "## Meaning", "## Impact", "## Diagnosis", "## Mitigation"}, headings)
		require.Contains(t, string(index), fmt.Sprintf("| [%[1]s](%[1]s.md) | %s |", a.Alert, a.Labels["severity"]))
		pages = slices.DeleteFunc(pages, func(p string) bool { return filepath.Base(p) == a.Alert+".md" })
	}
	require.Empty(t, pages, "pages of alerts that do not exist")
}

// The files and headings that the pages link to exist.
func TestRunbookLinks(t *testing.T) {
	for _, path := range append(glob(t, runbooks+"/*.md"), "../deploy/prometheus/README.md") {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`).FindAllStringSubmatch(string(page), -1) {
			to := path
			if link[1] != "" {
				to = filepath.Join(filepath.Dir(path), link[1])
			}
			require.FileExists(t, to, path)
			if link[2] != "" {
				require.Contains(t, anchors(t, to), link[2], "%s: %s", path, link[0])
			}
		}
	}
}

// anchors returns the links to the headings of a page as GitHub makes them.
func anchors(t *testing.T, path string) (found []string) {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(page), -1) {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, "#"+strings.ReplaceAll(kept, " ", "-"))
	}
	return found
}

// The queries in the runbooks can be parsed.
func TestRunbookQueries(t *testing.T) {
	rules, n := "groups:\n- name: runbooks\n  rules:\n", 0
	for _, path := range glob(t, runbooks+"/*.md") {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
			rules += fmt.Sprintf("  - record: runbook:query:%d\n    expr: |\n      %s\n", n, strings.ReplaceAll(strings.TrimSpace(block[1]), "\n", "\n      "))
			n++
		}
	}
	require.Greater(t, n, 20)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	require.Contains(t, run(t, "promtool", "check", "rules", path), fmt.Sprintf("%d rules found", n))
}

// metricNames returns the names of metrics in a text, including repetitions.
func metricNames(text string) []string {
	return regexp.MustCompile(`\b(unlocker|grpc_client|process|go)_[a-z_]*[a-z]\b`).FindAllString(text, -1)
}

// The rules, their tests, the runbooks and the dashboard use only metrics in docs/metrics.md,
// which another test compares with the code.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	known := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (gauge|counter|histogram)").FindAllStringSubmatch(string(page), -1) {
		known[row[1]] = true
		if row[2] == "histogram" {
			known[row[1]+"_bucket"] = true
		}
	}
	require.Greater(t, len(known), 25)
	paths := append(glob(t, runbooks+"/*.md"), glob(t, "../deploy/prometheus/tests/*.yaml")...)
	for _, path := range append(paths, rulesFile, "../deploy/prometheus/README.md", "../deploy/grafana/unlocker.json") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range metricNames(string(text)) {
			standard := regexp.MustCompile(`^(grpc_client|process|go)_`).MatchString(name) // documented as patterns
			require.True(t, known[name] || standard, "%s: %s", path, name)
		}
	}
}
