//go:build e2e

package e2e

import (
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// dashboard is the part of the JSON of a Grafana dashboard that is tested. Grafana is not
// available in CI, so the tests check what it would refuse or not show.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct{ List []variable }
	Annotations   struct{ List []annotation }
	Panels        []panel
}

type variable struct {
	Name, Type, AllValue string
	Query                any
	IncludeAll, Multi    bool
	Datasource           datasource
}

type annotation struct {
	Name, Expr, TitleFormat, TextFormat, IconColor, TagKeys string
	Enable                                                  bool
	Datasource                                              datasource
}

type datasource struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               datasource
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []target
}

type target struct {
	Expr, RefID, Format string
	Instant, Range      bool
	Datasource          datasource
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	raw, err := os.ReadFile("../deploy/grafana/unlocker.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &d))
	return d
}

func TestDashboardStructure(t *testing.T) {
	d := readDashboard(t)
	require.Equal(t, "unlocker", d.UID)
	require.GreaterOrEqual(t, d.SchemaVersion, 39, "the version of Grafana 10.4")
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			require.Equal(t, datasource{"prometheus", "${datasource}"}, v.Datasource, v.Name)
			require.Equal(t, ".*", v.AllValue, "%s: All must include deployments without the label", v.Name)
		}
	}
	require.Equal(t, []string{"datasource", "namespace", "job", "unlocker"}, variables)
	require.Equal(t, "datasource", d.Templating.List[0].Type)
	require.Len(t, d.Annotations.List, 5)
	for _, a := range d.Annotations.List[1:] {
		require.True(t, a.Enable, a.Name)
		require.NotContains(t, []string{a.TitleFormat, a.TextFormat, a.IconColor}, "", a.Name)
		require.Equal(t, datasource{"prometheus", "${datasource}"}, a.Datasource, a.Name)
		requireSelectors(t, a.Name, a.Expr)
	}
	ids := map[int]string{}
	for _, p := range d.Panels {
		require.Empty(t, ids[p.ID], "%s has the id of another panel", p.Title)
		ids[p.ID] = p.Title
		require.NotEmpty(t, p.Title)
		checkPosition(t, d, p)
		if p.Type != "row" {
			checkPanel(t, p)
		}
	}
}

// checkPosition checks that a panel is within the width of 24 and does not overlap another.
func checkPosition(t *testing.T, d dashboard, p panel) {
	g := p.GridPos
	require.Positive(t, g.W*g.H, p.Title)
	require.True(t, g.X >= 0 && g.Y >= 0 && g.X+g.W <= 24, "%s is outside", p.Title)
	for _, q := range d.Panels {
		o := q.GridPos
		apart := g.X+g.W <= o.X || o.X+o.W <= g.X || g.Y+g.H <= o.Y || o.Y+o.H <= g.Y
		require.True(t, apart || p.ID == q.ID, "%s overlaps %s", p.Title, q.Title)
	}
}

func checkPanel(t *testing.T, p panel) {
	require.Regexp(t, `\S\.( |$)`, p.Description, "%s has no description", p.Title)
	require.Equal(t, datasource{"prometheus", "${datasource}"}, p.Datasource, p.Title)
	require.NotEmpty(t, p.Targets, p.Title)
	if p.Type == "timeseries" || p.Type == "stat" {
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
	}
	refs := map[string]bool{}
	for _, q := range p.Targets {
		require.False(t, refs[q.RefID], "%s has two queries %s", p.Title, q.RefID)
		refs[q.RefID] = true
		require.Equal(t, p.Datasource, q.Datasource, p.Title)
		require.NotEqual(t, q.Instant, q.Range, p.Title)
		require.Equal(t, q.Instant, p.Type == "table", p.Title)
		requireSelectors(t, p.Title, q.Expr)
	}
}

// requireSelectors requires that each metric of the query is of the selected deployment.
func requireSelectors(t *testing.T, title, expr string) {
	t.Helper()
	selectors := regexp.MustCompile(`\{[^{}]*\}`).FindAllString(expr, -1)
	require.Len(t, selectors, len(metricNames(expr)), "%s: a metric has no selector\n%s", title, expr)
	for _, selector := range selectors {
		require.Contains(t, selector, `job=~"$job", namespace=~"$namespace"`, title)
	}
}

// testDashboard runs every query of the dashboard, and requires that all of them return data.
func (s *stack) testDashboard(t *testing.T) {
	s.provideData()
	d := readDashboard(t)
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			parts := regexp.MustCompile(`^label_values\(([^{,]+)(\{.*\})?, (\w+)\)$`).FindStringSubmatch(v.Query.(map[string]any)["query"].(string))
			require.NotNil(t, parts, v.Name)
			require.NotEmpty(t, s.values(parts[3], fill(parts[1]+parts[2])), v.Name)
		}
	}
	var queries int
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries++
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(s.query(fill(q.Expr)), func(found sample) bool { return !math.IsNaN(found.value) })
			}, soon, poll, "%s: %s", p.Title, fill(q.Expr))
		}
	}
	t.Logf("%d queries in %d panels", queries, len(d.Panels))
	for _, a := range d.Annotations.List[1:] { // of what happened since the start, as they mark a range
		labels := regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(a.TitleFormat+a.TextFormat, -1)
		require.Eventually(t, func() bool { // there are others before it, in no order: an orphan has no hostname
			return slices.ContainsFunc(s.query("last_over_time(("+fill(a.Expr)+")[15m:1s])"), func(found sample) bool {
				return !slices.ContainsFunc(labels, func(label []string) bool { return found.labels[label[1]] == "" })
			})
		}, soon, poll, "%s: nothing has all of %s: %s", a.Name, labels, a.Expr)
	}
	s.checkTable(t, d)
}

// fill replaces the variables as Grafana does.
func fill(expr string) string {
	return strings.NewReplacer("$namespace", ".*", "$job", "unlocker", "$__rate_interval", "1m", "$__range", "1h").Replace(expr)
}

// provideData causes everything that the dashboard shows: overdue locks, renewals, a host with a wrong
// clock, a near miss, a forced unlock, and a native lock.
func (s *stack) provideData() {
	s.t.Helper()
	_, err := s.etcd.client.Put(s.t.Context(), "/locks/deploy/694d9a3c1b7e5f02", "")
	require.NoError(s.t, err)
	workers := []worker{
		{lock: "data/1", hostname: "worker-1.example.org", owner: "invoices"},
		{lock: "data/2", hostname: "worker-2.example.org", owner: "invoices"},
		{lock: "data/3", hostname: "worker-3.example.org"},
		{lock: "data/slow", hostname: "worker-slow.example.org", offset: -90 * time.Second},
	}
	for i := range workers {
		workers[i].etcd = s.etcd.server
		workers[i].wait()
		workers[i].acquire(0, time.Hour)
		workers[i].renew(0, time.Hour)
	}
	(&worker{etcd: s.etcd.server, lock: "data/1", hostname: "worker-2.example.org"}).wait(workers[0].token) // a deadlock of one
	late := worker{etcd: s.etcd.server, lock: "data/late", hostname: "worker-3.example.org", offset: -59 * time.Minute}
	late.acquire(2*time.Hour, time.Hour)
	late.offset = 0 // its clock was set, so a minute of an hour was left at its renewal
	late.renew(2*time.Hour, time.Hour)
	dead := worker{etcd: s.etcd.server, lock: "data/dead", hostname: "worker-1.example.org"}
	dead.acquire(time.Second, 2*time.Second)
	s.etcd.awaitGone(dead.lock + "/")
	require.Eventually(s.t, func() bool {
		found := s.query(`unlocker:host_clock_offset_seconds:avg`)
		if len(found) == 1 && found[0].labels["hostname"] == "worker-slow.example.org" && math.Abs(found[0].value+90) < 1 {
			return true
		}
		for i := range workers {
			workers[i].renew(0, time.Hour) // the last one may have been seen late
		}
		return false
	}, soon, 5*interval, "only the host with the wrong clock must be shown")
}

// checkTable checks the rows of the overdue locks.
func (s *stack) checkTable(t *testing.T, d dashboard) {
	i := slices.IndexFunc(d.Panels, func(p panel) bool { return p.Title == "Overdue locks" })
	require.GreaterOrEqual(t, i, 0)
	var holders map[string]string
	require.Eventually(t, func() bool {
		holders = map[string]string{}
		for _, row := range s.query(fill(d.Panels[i].Targets[0].Expr)) {
			require.Positive(t, row.value)
			require.Less(t, row.value, 10*soon.Seconds())
			holders[row.labels["lock"]] = row.labels["hostname"]
		}
		return holders["data/dead"] == "" // there was a scrape after the removal
	}, soon, poll)
	require.Equal(t, map[string]string{
		"data/1": "worker-1.example.org", "data/2": "worker-2.example.org", "data/3": "worker-3.example.org",
		"data/slow": "worker-slow.example.org",
	}, holders)
}
