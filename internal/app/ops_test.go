package app_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// nowhere is the endpoint of an etcd that does not exist: the ops listener does not need one.
var nowhere = []string{"127.0.0.1:1"}

func TestOpsListener(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nowhere)
	for name, c := range map[string]struct {
		method, path, accept string
		status               int
		contentType, body    string
	}{
		"metrics":            {"GET", "/metrics", "", 200, "text/plain; version=0.0.4", "unlocker_build_info{"},
		"metrics for Chrome": {"GET", "/metrics", "text/html,*/*;q=0.8", 200, "text/plain; version=0.0.4", "unlocker_locks{"},
		"OpenMetrics":        {"GET", "/metrics", "application/openmetrics-text;version=1.0.0", 200, "application/openmetrics-text; version=1.0.0", "# EOF\n"},
		"protobuf": {"GET", "/metrics", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", 200,
			"application/vnd.google.protobuf", "unlocker_locks"},
		"metrics head": {"HEAD", "/metrics", "", 200, "text/plain; version=0.0.4", ""},
		"metrics post": {"POST", "/metrics", "", 405, "text/plain", "Method Not Allowed"},
		"livez":        {"GET", "/livez", "", 200, "text/plain; charset=utf-8", "ok\n"},
		"livez head":   {"HEAD", "/livez", "", 200, "text/plain; charset=utf-8", ""},
		"livez post":   {"POST", "/livez", "", 405, "text/plain", "Method Not Allowed"},
		"readyz":       {"GET", "/readyz", "", 503, "text/plain; charset=utf-8", "not ready: the first listing of /mutexes/ is not done"},
		"readyz head":  {"HEAD", "/readyz", "", 503, "text/plain; charset=utf-8", ""},
		"elsewhere":    {"GET", "/elsewhere", "", 404, "text/plain", "not found"},
		"root":         {"GET", "/", "", 404, "text/plain", "not found"},
		"beyond":       {"GET", "/metrics/x", "", 404, "text/plain", "not found"},
		"profiles":     {"GET", "/debug/pprof/", "", 404, "text/plain", "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(c.method, d.base+c.path, nil)
			require.NoError(t, err)
			if c.accept != "" {
				req.Header.Set("Accept", c.accept)
			}
			resp, err := d.http.Do(req)
			require.NoError(t, err)
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, c.status, resp.StatusCode)
			require.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), c.contentType), resp.Header.Get("Content-Type"))
			require.Contains(t, string(body), c.body)
			if c.method == http.MethodHead {
				require.Empty(t, body)
			}
		})
	}
}

// Profiles are served where ops.pprof is set, without the command line, which may have a password.
func TestOpsListenerWithProfiles(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, nowhere, func(c *config.Config) { c.Ops.PProf = true })
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/debug/pprof/":                  {200, "goroutine"},
		"/debug/pprof/goroutine?debug=1": {200, "goroutine profile: total "},
		"/debug/pprof/heap?debug=1":      {200, "heap profile: "},
		"/debug/pprof/trace?seconds=0.1": {200, "go 1."},
		"/debug/pprof/cmdline":           {404, ""},
		"/livez":                         {200, "ok"},
	} {
		req, err := http.NewRequest(http.MethodGet, d.base+path, nil)
		require.NoError(t, err)
		resp, err := d.http.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, errors.Join(err, resp.Body.Close()))
		require.Equal(t, want.status, resp.StatusCode, path)
		require.Contains(t, string(body), want.body, path)
	}
}

func TestOpsListenerWithTLSAndBasicAuth(t *testing.T) {
	t.Parallel()
	w := newWebFiles(t, withTLS+withUsers(t, "scraper", "secret"))
	d := startDaemon(t, nowhere, func(c *config.Config) { c.Ops.WebConfigFile = w.path() })
	addr := d.OpsAddr()
	require.Equal(t, http.StatusUnauthorized, w.status("https://"+addr+"/metrics"))
	require.Equal(t, http.StatusUnauthorized, w.status("https://"+addr+"/livez"), "basic auth guards the whole listener")
	require.Equal(t, http.StatusUnauthorized, w.status("https://"+addr+"/metrics", "scraper", "wrong"))
	require.Equal(t, http.StatusOK, w.status("https://"+addr+"/metrics", "scraper", "secret"))
	require.Equal(t, http.StatusBadRequest, w.status("http://"+addr+"/livez"), "plain text to a TLS listener")
}
