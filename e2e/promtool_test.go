//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// promtool finds no problem in the metrics of a daemon with series in every family.
func TestPromtoolCheckMetrics(t *testing.T) {
	promtool := program(t, "promtool")
	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr)
	past := time.Now().Add(-time.Minute)
	etcd.putLocks("overdue", 3, past, time.Now().Add(time.Hour))
	etcd.putLocks("due", 3, past, past)
	etcd.awaitGone("due/")
	d.awaitMetric(3, "unlocker_locks")
	d.awaitMetric(3, "unlocker_forced_unlocks_total")
	require.EqualValues(t, 3, d.metric("unlocker_lock_info"))
	require.Positive(t, d.metric("unlocker_forced_unlock_timestamp_seconds", "lock", "due/00001"))

	_, metrics := d.get("/metrics")
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(metrics)
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

// The queries that docs/metrics.md recommends can be parsed.
func TestPromtoolCheckQueries(t *testing.T) {
	promtool := program(t, "promtool")
	found := queries(t, "../docs/metrics.md")
	require.Greater(t, len(found), 15)
	rules := "groups:\n- name: docs\n  rules:\n"
	for i, q := range found {
		rules += fmt.Sprintf("  - record: doc:query:%d\n    expr: |\n      %s\n", i, strings.ReplaceAll(q, "\n", "\n      "))
	}
	path := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(path, []byte(rules), 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", path).CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, rules)
	require.Contains(t, string(out), fmt.Sprintf("%d rules found", len(found)))
}

// queries returns the PromQL of a page: indented blocks, and inline code that has a metric
// and more than its name.
func queries(t *testing.T, path string) (found []string) {
	t.Helper()
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	metric := regexp.MustCompile(`\b(unlocker|grpc_client|process|go)_\w|\bup\{`)
	for _, block := range regexp.MustCompile(`(?m)(^ {4}.*\n)+`).FindAllString(string(page), -1) {
		if metric.MatchString(block) {
			found = append(found, strings.TrimSpace(block))
		}
	}
	for _, code := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(string(page), -1) {
		if metric.MatchString(code[1]) && strings.ContainsAny(code[1], "({=<>") {
			found = append(found, code[1])
		}
	}
	return found
}
