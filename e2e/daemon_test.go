//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// daemon is a process of the binary that serves.
type daemon struct {
	*process
	base string
}

func startDaemon(t *testing.T, etcd string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{process: start(t, unlocker, append([]string{"serve", "--etcd-endpoints", etcd, "--ops-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0",
		"--reaper-freshness", "2s", "--reaper-grace", "2s", "--reaper-clock-tolerance", "1s", "--reaper-probe-interval", "1s",
		"--reaper-settle", "500ms", "--reaper-storm-min-locks", "0"}, flags...)...)}
	d.base = "http://" + d.awaitLine(api.LogStarted)["ops"].(string)
	return d
}

func (d *daemon) get(path string) (status int, body string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.base+path, nil)
	require.NoError(d.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return resp.StatusCode, string(text)
}

// metric scrapes, and returns what etcdtest.Metric does.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	_, body := d.get("/metrics")
	return etcdtest.Metric(d.t, body, name, labels...)
}

func (d *daemon) awaitMetric(value float64, name string, labels ...string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.metric(name, labels...) == value }, soon, poll,
		"%s%q did not become %v", name, labels, value)
}
