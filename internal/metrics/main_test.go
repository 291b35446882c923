package metrics

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the present time in the tests.
var noon = time.Unix(1_700_000_000, 0)

// always is a Source that returns the same snapshot each time.
type always Snapshot

func (a always) Snapshot(context.Context) (Snapshot, error) { return Snapshot(a), nil }

// source is a function that implements Source.
type source func(context.Context) (Snapshot, error)

func (s source) Snapshot(ctx context.Context) (Snapshot, error) { return s(ctx) }

// fields are the fields of a lock by name; a uuid is always added.
type fields map[string]string

func makeOverdue(name string, f fields) table.View {
	var b protocol.Builder
	b.Add(protocol.KV{Field: protocol.FieldUUID, Value: []byte("u"), Create: 1, Mod: 1})
	for k, v := range f {
		b.Add(protocol.KV{Field: protocol.ParseField([]byte(k)), Value: []byte(v), Create: 1, Mod: 1})
	}
	return table.View{Lock: b.Lock(name)}
}

func removal(name, host string, after int) api.Forced {
	return api.Forced{
		Name: name, Hostname: host, Owner: "o", At: noon.Add(time.Duration(after) * time.Second), Trigger: verdict.Expiry,
	}
}

// newRegistry returns a pedantic registry with all metrics.
func newRegistry(tb testing.TB, s Source, limit int) (*prometheus.Registry, *Histograms) {
	tb.Helper()
	h := NewHistograms()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(tb, Register(reg, New(s, limit), h))
	return reg, h
}

// exposition returns the lines of a scrape for the given metrics, without comments. A name
// that ends in an underscore is a prefix.
func exposition(tb testing.TB, g prometheus.Gatherer, names ...string) string {
	tb.Helper()
	families, err := g.Gather()
	require.NoError(tb, err)
	var b bytes.Buffer
	for _, f := range families {
		if slices.ContainsFunc(names, func(n string) bool {
			return f.GetName() == n || strings.HasSuffix(n, "_") && strings.HasPrefix(f.GetName(), n)
		}) {
			_, err := expfmt.MetricFamilyToText(&b, f)
			require.NoError(tb, err)
		}
	}
	requireParses(tb, b.Bytes())
	var lines []string
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") {
			name, value, found := cutLast(strings.TrimSuffix(line, "\n"))
			v, err := strconv.ParseFloat(value, 64)
			require.True(tb, found && err == nil, line)
			lines = append(lines, name+" "+strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	return strings.Join(lines, "\n")
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// unindent removes the indentation of a literal in a test.
func unindent(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
