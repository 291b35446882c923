package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// enforcing runs a daemon that removes locks at once, and waits until it would.
func (e etcd) enforcing(flags ...string) (url string) {
	e.t.Helper()
	url = e.serve(append([]string{"--reaper-settle=0s", "--reaper-standby-delay=0s"}, flags...)...)
	etcdtest.Eventually(e.t, func() bool {
		var s api.Status
		resp, err := http.Get(url + "/api/v1/status")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return json.NewDecoder(resp.Body).Decode(&s) == nil && s.Ready && s.Mode == "enforce" && len(s.Holds) == 0
	}, "removals are on hold")
	return url
}

func drillName(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	return "unlocker-drill/" + host
}

// alertmanager has an old alert about the lock of a drill and, where the replica shows it as overdue, a new one.
func alertmanager(t *testing.T, replica, state string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filter := r.URL.Query()["filter"]; r.URL.Path != "/api/v2/alerts" || len(filter) != 1 || filter[0] != `lock="`+drillName(t)+`"` {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		alert := func(at time.Time) string {
			return `{"fingerprint":"f","startsAt":"` + at.Format(time.RFC3339Nano) + `","status":{"state":"` + state + `"},"labels":{"alertname":"UnlockerLockOverdue"}}`
		}
		alerts := []string{alert(time.Now().Add(-time.Hour))}
		if overdue(replica) {
			alerts = append(alerts, alert(time.Now()))
		}
		_, _ = w.Write([]byte("[" + strings.Join(alerts, ",") + "]"))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// prometheus has scraped a replica at the time of a query, where the lock of a drill is in its metrics.
func prometheus(t *testing.T, replica string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := regexp.MustCompile(`^timestamp\(unlocker_lock_alert_timestamp_seconds\{lock="` + regexp.QuoteMeta(drillName(t)) + `"\}\) >= (\d+)$`).
			FindStringSubmatch(r.URL.Query().Get("query"))
		if r.URL.Path != "/api/v1/query" || began == nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		result := ""
		if overdue(replica) && began[1] <= strconv.FormatInt(time.Now().Unix(), 10) {
			result = `{"metric":{},"value":[1,"1"]}`
		}
		_, _ = w.Write([]byte(`{"status":"success","data":{"resultType":"vector","result":[` + result + `]}}`))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// overdue reports whether a replica shows the lock of a drill as overdue.
func overdue(replica string) bool {
	var page api.LockPage
	resp, err := http.Get(replica + "/api/v1/locks?state=overdue&q=unlocker-drill")
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return json.NewDecoder(resp.Body).Decode(&page) == nil && len(page.Locks) > 0
}

func TestDrill(t *testing.T) {
	e := newEtcd(t)
	first, second := e.enforcing(), e.enforcing()
	drill := []string{"drill", "--alert-after=1s", "--unlock-after=4s", "--timeout=1m", "--url", first, "--url", second}
	code, stdout, stderr := e.call(nil, append(drill, "--alertmanager", alertmanager(t, first, "active"), "--prometheus", prometheus(t, first))...)
	require.Equal(t, exitOK, code, stdout+stderr)
	const seen = `✓ +\d+\.\ds  ` // the alert not before alert_at, as the old one would be
	require.Regexp(t, "^"+seen+"seen by "+first+"\n"+seen+"overdue at "+first+"\n"+seen+"seen by "+second+"\n"+seen+"overdue at "+second+"\n"+
		`✓ +[1-9]\d*\.\ds  `+"overdue in Prometheus\n"+`✓ +[1-9]\d*\.\ds  `+"alert in Alertmanager\n"+seen+"removed\n"+seen+"record written\n"+seen+"forced unlock listed by "+first+"\n"+
		seen+"forced unlock listed by "+second+"\n"+seen+"handed over to a waiter\n$", stdout)
	require.ElementsMatch(t, strings.Split(stdout, "\n"), strings.Split(stderr, "\n"), "each as it is seen")
	require.Empty(t, e.Keys(""))
	_, removed, _ := e.call(nil, "history", drillName(t), "-o", "json")
	require.Contains(t, removed, "nothing is wrong, this lock expires to prove that alerts and removals work")

	// Again, as the alert that there is and the record of the first one are of no use.
	code, stdout, stderr = e.call(nil, append(drill, "--quiet", "--alertmanager", alertmanager(t, first, "suppressed"))...)
	require.Equal(t, exitFailure, code, stdout+stderr)
	require.Regexp(t, "✗ +-  alert in Alertmanager: (it is suppressed: a silence or an inhibition applies|there was none before the lock was removed)\n", stdout)
	require.Equal(t, 1, strings.Count(stdout, "✗"), stdout)
	require.Empty(t, stderr)
	require.Empty(t, e.Keys(""))

	code, stdout, stderr = e.call(nil, append(drill, "-q")...)
	require.Equal(t, exitOK, code, stdout+stderr)
	require.Empty(t, stdout+stderr)

	// A Prometheus that does not scrape the replicas has no such metric.
	code, stdout, stderr = e.call(nil, append(drill, "-q", "--prometheus", prometheus(t, "http://127.0.0.1:1"))...)
	require.Equal(t, exitFailure, code, stdout+stderr)
	require.Contains(t, stdout, "✗       -  overdue in Prometheus: it has no unlocker_lock_alert_timestamp_seconds of the lock\n")
	require.Equal(t, 1, strings.Count(stdout, "✗"), stdout)
}

// A drill that proves nothing does not begin, and says why. It ends at once where only the verdict on its
// lock says so, and leaves nothing.
func TestRefusedDrill(t *testing.T) {
	e := newEtcd(t)
	policy := t.TempDir() + "/unlocker.yaml"
	require.NoError(t, os.WriteFile(policy, []byte("policies: [{match: 'unlocker-drill/**', mode: dry-run}]\n"), 0o600))
	for _, c := range []struct{ url, says string }{
		{"http://127.0.0.1:1", `^unlocker: no replica would remove the lock, so none was taken: http://127.0.0.1:1 does not answer: dial tcp`},
		{e.serve("--reaper-mode=dry-run"), `^unlocker: no replica would remove the lock, so none was taken: \S+ removes nothing: its reaper.mode is dry-run\n$`},
		{e.serve(), `^unlocker: no replica would remove the lock, so none was taken: \S+ has removals on hold: \S`},
		{e.enforcing("--config", policy), `\nunlocker: no replica would remove the lock, so it is released: \S+ says: lock "unlocker-drill/.*" would be removed at .*, but its mode is dry-run \(policy "unlocker-drill/\*\*"\)`},
	} {
		code, _, stderr := e.call(nil, "drill", "--unlock-after=1m", "--url", c.url)
		require.Equal(t, exitFailure, code, stderr)
		require.Regexp(t, c.says, stderr)
		require.Empty(t, e.Keys(""))
	}
	url := e.enforcing()
	code, _, stderr := e.call(nil, "pause", "--match", "unlocker-drill/**", "--for=1h", "--reason=maintenance")
	require.Equal(t, exitOK, code, stderr)
	etcdtest.Eventually(t, func() bool {
		code, _, stderr = e.call(nil, "drill", "--alert-after=1s", "--unlock-after=2s", "--url", url)
		return strings.Contains(stderr, "maintenance")
	}, "the pause is not seen")
	require.Equal(t, exitFailure, code)
	require.Regexp(t, `says: lock "unlocker-drill/.*" is not removed before the pause ends: paused until .* maintenance`, stderr)
	require.Empty(t, e.Keys(""))
}

// An interrupted drill, and one that a hold keeps from removing its lock, release it, also past its deadline.
func TestDrillReleasesItsLock(t *testing.T) {
	e := newEtcd(t)
	url := e.enforcing("--reaper-grace=1h")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := e.Client.Watch(ctx, "/mutexes/unlocker-drill/", clientv3.WithPrefix())
	go func() {
		<-taken
		cancel()
	}()
	code, _, stderr := callIn(ctx, nil, "drill", "--url", url, "--etcd-endpoints", e.Endpoints()[0])
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "unlocker: interrupted\n")
	require.Empty(t, e.Keys(""))

	code, stdout, _ := e.call(nil, "drill", "--url", url, "--alert-after=1s", "--unlock-after=1100ms", "--timeout=3s")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stdout, "✗       -  removed: nothing was seen of it\n")
	require.Regexp(t, `✗ +-  forced unlock listed by \S+: the lock waits until .*: grace 1h0m0s after auto_unlock_at\n`, stdout)
	require.Empty(t, e.Keys(""))

	e.take(drillName(t), time.Hour, time.Hour)
	code, _, stderr = e.call(nil, "drill", "--url", url)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "is held")
}

func TestWrongDrills(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, names := range map[string]string{
		"extra":                           `unexpected argument "extra"`,
		"--alert-after=1m":                "each longer than the one before",
		"--unlock-after=5m":               "each longer than the one before",
		"--timeout=2h":                    "1s to 1h",
		"--url localhost:9481":            "such as http://localhost:9481",
		"--alertmanager http://u:hush@am": "must not contain credentials",
		"--prometheus http://u:hush@am":   "must not contain credentials",
	} {
		code, stdout, stderr := call(t, t.Context(), append([]string{"drill"}, strings.Fields(args)...)...)
		require.Equal(t, exitUsage, code, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, names)
		require.NotContains(t, stderr, "hush")
	}
}
