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
func (s *stack) query(expr string) (samples []sample) {
	s.t.Helper()
	var found struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	s.ask("/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &found)
	require.Equal(s.t, "vector", found.ResultType, expr)
	for _, r := range found.Result {
		value, err := strconv.ParseFloat(r.Value[1].(string), 64)
		require.NoError(s.t, err)
		samples = append(samples, sample{labels: r.Metric, value: value})
	}
	return samples
}

// values returns the values of a label in a metric, as the variables of Grafana do.
func (s *stack) values(label, metric string) (values []string) {
	s.t.Helper()
	s.ask("/api/v1/label/"+label+"/values?"+url.Values{"match[]": {metric}}.Encode(), &values)
	return values
}

func (s *stack) ask(path string, data any) {
	s.t.Helper()
	status, body, err := s.get(s.prometheus + path)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, status, "%s\n%s", path, body)
	answer := struct{ Data any }{data}
	require.NoError(s.t, json.Unmarshal(body, &answer))
}
