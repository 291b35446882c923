//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"github.com/stretchr/testify/require"
)

// sample is one of the series that a query returns.
type sample struct {
	labels map[string]string
	value  float64
}

// query evaluates an expression in Prometheus at the present time.
func (m *monitor) query(expr string) (samples []sample) {
	m.t.Helper()
	var found struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	m.ask("/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &found)
	require.Equal(m.t, "vector", found.ResultType, expr)
	for _, r := range found.Result {
		value, err := strconv.ParseFloat(r.Value[1].(string), 64)
		require.NoError(m.t, err)
		samples = append(samples, sample{labels: r.Metric, value: value})
	}
	return samples
}

// values returns the values of a label in a metric, as the variables of Grafana do.
func (m *monitor) values(label, metric string) (values []string) {
	m.t.Helper()
	m.ask("/api/v1/label/"+label+"/values?"+url.Values{"match[]": {metric}}.Encode(), &values)
	return values
}

func (m *monitor) ask(path string, data any) {
	m.t.Helper()
	status, body, err := m.get(m.prometheus + path)
	require.NoError(m.t, err)
	require.Equal(m.t, http.StatusOK, status, "%s\n%s", path, body)
	answer := struct{ Data any }{data}
	require.NoError(m.t, json.Unmarshal(body, &answer))
}
