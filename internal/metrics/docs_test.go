package metrics

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

const docs = "../../docs/metrics.md"

func gathered(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	reg, h := newRegistry(t, always(full()), 500)
	h.ForcedUnlockDelay.Observe(1)
	h.LockHoldDuration.Observe(1)
	families, err := reg.Gather()
	require.NoError(t, err)
	return families
}

func document(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile(docs)
	require.NoError(t, err)
	return string(doc)
}

// rows returns the rows of docs/metrics.md whose first cell matches.
func rows(t *testing.T, first string) (found []string) {
	t.Helper()
	re := regexp.MustCompile("^\\| `" + first + "` \\|")
	for line := range strings.Lines(document(t)) {
		if re.MatchString(line) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

func kind(f *dto.MetricFamily) string {
	if f.GetType() == dto.MetricType_HISTOGRAM {
		return "histogram, classic and native"
	}
	return strings.ToLower(f.GetType().String())
}

// The tables in docs/metrics.md must agree with the code in name, type, labels and help.
// If they do not, the failure shows the rows to paste.
func TestDocsHaveEveryMetric(t *testing.T) {
	var want []string
	for _, f := range gathered(t) {
		if !strings.HasPrefix(f.GetName(), "unlocker_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		if len(labels) == 0 {
			labels = []string{"–"}
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), kind(f), strings.Join(labels, ", "), f.GetHelp()))
	}
	got := rows(t, "unlocker_[a-z_]+")
	slices.Sort(got)
	slices.Sort(want)
	require.Equal(t, strings.Join(want, "\n"), strings.Join(got, "\n"))
}

// Label values that the code defines are part of the interface too, unlike the names of
// locks and hosts.
func TestDocsHaveEveryLabelValue(t *testing.T) {
	var want []string
	for _, f := range gathered(t) {
		free := []string{"unlocker_build_info", "unlocker_pause_until_timestamp_seconds"} // labels of any text
		if !strings.HasPrefix(f.GetName(), "unlocker_") || slices.Contains(free, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains([]string{"lock", "hostname", "owner", "prefix"}, l.GetName()) {
					want = append(want, fmt.Sprintf("| `%s` | `%s` of `%s` |", l.GetValue(), l.GetName(), f.GetName()))
				}
			}
		}
	}
	var got []string
	for _, row := range rows(t, "[A-Za-z_]+") {
		if strings.Contains(row, "` of `") {
			cells := strings.SplitAfterN(row, " |", 3)
			require.Len(t, cells, 3, "%s needs a meaning", row)
			got = append(got, cells[0]+cells[1])
		}
	}
	require.NotEmpty(t, want)
	require.ElementsMatch(t, want, got)
}

// All other metrics come from collectors whose names are documented as a pattern.
func TestDocsHaveStandardCollectors(t *testing.T) {
	patterns := rows(t, "[a-z_]+\\*")
	for _, p := range []string{"go_*", "process_*", "grpc_client_*"} {
		require.True(t, slices.ContainsFunc(patterns, func(row string) bool { return strings.HasPrefix(row, "| `"+p+"` |") }), p)
	}
	require.Len(t, patterns, 3)
	for _, f := range gathered(t) {
		require.Regexp(t, "^(unlocker|go|process)_", f.GetName())
	}
}

// No example may use a metric that does not exist.
func TestDocsNameNoOtherMetric(t *testing.T) {
	known := map[string]bool{}
	for _, f := range gathered(t) {
		known[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				known[f.GetName()+suffix] = true
			}
		}
	}
	names := regexp.MustCompile(`\b(unlocker|go|process)_[a-z_]*[a-z]\b`).FindAllString(document(t), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.True(t, known[name], name)
	}
}
