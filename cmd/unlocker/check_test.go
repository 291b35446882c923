package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/check"
)

// replica serves a status, one overdue lock and nothing removed by force.
func replica(t *testing.T, overdue string) string {
	t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/status":
			_, _ = w.Write([]byte(`{"now":"` + now + `","mode":"enforce","prefix":"/mutexes/","ready":true,"etcd":{"up":true},"version":"1.2.3","identity":"r-0",
				"locks":{"held":3,"overdue":` + overdue + `,"expired":0,"undated":0,"malformed":0,"orphaned":0}}`))
		case "/api/v1/locks":
			_, _ = w.Write([]byte(`{"locks":[{"name":"a/b","state":"overdue","hostname":"worker-1","alert_at":"` + now + `"}]}`))
		case "/api/v1/forced-unlocks":
			_, _ = w.Write([]byte(`{"forced_unlocks":[]}`))
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":"no such lock"}`))
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestCheck(t *testing.T) {
	t.Chdir(t.TempDir())
	busy, idle := replica(t, "1"), replica(t, "0")
	for name, c := range map[string]struct {
		args string
		code int
		line string
	}{
		"fine":            {"--url " + idle, 0, "UNLOCKER OK: 3 locks, none overdue | overdue=0;0;;0 locks_held=3;;;0 "},
		"overdue":         {"--url " + busy, 1, "UNLOCKER WARNING: 1 of 4 locks overdue: a/b (worker-1, "},
		"short flags":     {"-w 5:10 -c @1 -t 5 -v --url " + busy, 2, "UNLOCKER CRITICAL: 1 of 4 locks overdue"},
		"below zero":      {"-w -5: --url " + busy, 0, "UNLOCKER OK: 1 of 4 locks overdue"},
		"two replicas":    {"--url " + idle + " --url=" + idle, 0, "UNLOCKER OK: 3 locks"},
		"one is down":     {"--url http://127.0.0.1:1 --url " + idle, 1, "UNLOCKER WARNING: http://127.0.0.1:1 does not answer: dial tcp"},
		"down":            {"--url http://127.0.0.1:1", 2, "UNLOCKER CRITICAL: no daemon reports on the locks: http://127.0.0.1:1 does not answer: dial tcp"},
		"one lock":        {"--lock x/y --url " + busy, 0, "UNLOCKER OK: x/y is not held | held=0;;;0"},
		"not this binary": {"--url " + idle + "/nowhere", 2, "answers 404 Not Found: no such lock"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := call(t, t.Context(), append([]string{"check"}, strings.Fields(c.args)...)...)
			require.Contains(t, stdout, c.line)
			require.Equal(t, c.code, code)
			require.Empty(t, stderr)
			require.Equal(t, strings.Contains(c.args, "-v"), strings.Count(stdout, "\n") > 1, stdout)
		})
	}
}

func TestEmptyRangesNeverAlert(t *testing.T) {
	code, stdout, _ := call(t, t.Context(), "check", "-w", "", "-c", "", "--undated", "", "--url", replica(t, "1"))
	require.Equal(t, 0, code)
	require.Contains(t, stdout, " overdue=1;;;0 ")
}

// Each is UNKNOWN, on stdout, as plugins report it.
func TestWrongChecks(t *testing.T) {
	for args, names := range map[string]string{
		"--frob":                     "--frob",
		"-x":                         "-x",
		"--url":                      "--url",
		"-w ten":                     "-w, --warning",
		"-c 20:10":                   "start is greater than end",
		"--undated x":                "--undated",
		"-t soon":                    "--timeout",
		"-t 0":                       "--timeout",
		"-t -1":                      "--timeout",
		"-t 601":                     "--timeout",
		"--forced-minutes -1":        "--forced-minutes",
		"--forced-minutes 999999999": "--forced-minutes",
		"--hold-minutes 999999999":   "--hold-minutes",
		"extra":                      "unexpected argument extra",
		"--lock=":                    "--lock requires a name",
		"--lock a -w 5":              "--lock excludes",
		"--lock a --undated 5":       "--lock excludes",
		"--url ftp://x":              "http://HOST",
		"--url localhost:9481":       "the URL must begin with http:// or https://, such as http://localhost:9481",
		"--url http://u:hush@x":      "must not contain credentials",
		"--ca-file absent":           "absent",
		"--cert-file absent":         "certificate and key",
		"--username u":               "password file",
		"--password hush":            "--password",
	} {
		t.Run(args, func(t *testing.T) {
			code, stdout, stderr := call(t, t.Context(), append([]string{"check"}, strings.Fields(args)...)...)
			require.Equal(t, 3, code)
			require.Empty(t, stderr)
			require.True(t, strings.HasPrefix(stdout, "UNLOCKER UNKNOWN: "), stdout)
			require.Equal(t, 1, strings.Count(stdout, "\n"), stdout)
			require.Contains(t, stdout, names)
			require.NotContains(t, stdout, "hush")
		})
	}
}

func TestCheckPassword(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("password", []byte("hush\n"), 0o600))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user == "icinga" && password == "hush" {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	_, stdout, _ := call(t, t.Context(), "check", "--url", server.URL, "--username", "icinga", "--password-file", "password")
	require.Contains(t, stdout, "answers 418")
}

// An interrupted check reports UNKNOWN.
func TestInterruptedCheck(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, stdout, _ := call(t, ctx, "check", "--url", replica(t, "0"))
	require.Equal(t, 3, code)
	require.Equal(t, "UNLOCKER UNKNOWN: interrupted\n", stdout)
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestCheckCannotPrint(t *testing.T) {
	require.Equal(t, exitCode(int(check.Unknown)), report(fullDisk{}, check.Result{}))
}
