package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// What serve refuses, config check refuses, with the same line.
func TestInvalidConfigurations(t *testing.T) {
	text, err := os.ReadFile("../../internal/config/testdata/invalid.yaml")
	require.NoError(t, err)
	var cases []struct{ File, Error string }
	require.NoError(t, yaml.Unmarshal(text, &cases))
	require.NotEmpty(t, cases)
	t.Chdir(t.TempDir())
	t.Setenv("UNLOCKER_ETCD_DIAL_TIMEOUT", "") // or the file would not count
	t.Setenv("UNLOCKER_ETCD_REQUEST_TIMEOUT", "")
	for _, c := range cases {
		t.Run(c.Error, func(t *testing.T) {
			require.NoError(t, os.WriteFile("unlocker.yaml", []byte(c.File), 0o600))
			for _, command := range [][]string{{"config", "check"}, {"serve"}} {
				code, stdout, stderr := call(t, t.Context(), command...)
				require.Equal(t, exitUsage, code)
				require.Empty(t, stdout)
				require.Equal(t, "unlocker: unlocker.yaml"+c.Error+"\n", stderr)
			}
		})
	}
}

// What config check accepts, serve accepts: the values at the ends of their ranges, and each kind of endpoint.
func TestValidConfigurations(t *testing.T) {
	t.Chdir(t.TempDir())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, file := range map[string]string{
		"minima": `
etcd: {dial_timeout: 1ns, request_timeout: 1ns}
reaper: {grace: 1s, clock_tolerance: 1s, settle: 0, standby_delay: 0, freshness: 2s, orphan_grace: 1s, probe_interval: 1ns,
         storm: {min_locks: 0, fraction: 0, window: 0, delay: 0}}
election: {ttl: 2s}
resync_interval: 0
metrics: {max_lock_series: 0, forced_unlock_retention: 0}
`,
		"maxima": `
reaper: {grace: 24h, clock_tolerance: 24h, settle: 24h, standby_delay: 24h, probe_interval: 12h, batch_size: 124, concurrency: 1024,
         storm: {fraction: 1, window: 1h, delay: 30m}}
metrics: {max_lock_series: 100000}
policies: [{match: "**", mode: "off", grace: 24h}, {match: "[a-c]{x,y}?"}]
`,
		"another election":  `{prefix: "//a//", election: {key: //b//}}`,
		"no election":       `{election: {enabled: false, key: /mutexes}}`,
		"off":               `{reaper: {mode: "off"}, log: {level: error, format: logfmt}}`,
		"path prefix":       `{web: {path_prefix: /a/b-c_d.e}}`,
		"password":          `{etcd: {username: u, password: p}}`,
		"server name":       `{etcd: {endpoints: ["https://127.0.0.1:1"], tls: {server_name: "a b"}}}`,
		"plain":             `{etcd: {endpoints: ["127.0.0.1:1", "[::1]:1", "a:65535"]}}`,
		"plain and TLS":     `{etcd: {endpoints: ["127.0.0.1:1"], tls: {server_name: a}}}`,
		"http":              `{etcd: {endpoints: ["http://127.0.0.1:1", "http://[::1]:1/"]}}`,
		"https":             `{etcd: {endpoints: ["https://127.0.0.1:1", "https://a:1/"]}}`,
		"unix":              `{etcd: {endpoints: ["unix:///a", "unix://b c"]}}`,
		"unix and TLS":      `{etcd: {endpoints: ["unix:///a"], tls: {server_name: a}}}`,
		"unixs":             `{etcd: {endpoints: ["unixs:///a"]}}`,
		"addresses of host": `{ops: {listen: "127.0.0.1:0"}, web: {listen: "127.0.0.1:0"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile("unlocker.yaml", []byte(file), 0o600))
			for _, command := range [][]string{{"config", "check"}, {"serve", "--ops-listen=127.0.0.1:0", "--web-listen=127.0.0.1:0"}} {
				code, _, stderr := call(t, canceled, command...)
				require.Equal(t, exitOK, code, stderr)
			}
		})
	}
}

func TestConfigCheckConnect(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	addr := e.Addr(0)
	t.Setenv("UNLOCKER_ETCD_ENDPOINTS", addr)
	e.take("a", time.Hour, time.Hour)
	code, stdout, stderr := call(t, t.Context(), "config", "check", "--connect")
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stderr)
	require.Regexp(t, `^ok \(no file: flags, environment and defaults\)
ok      connect to `+addr+`: answers
ok      use etcd without a user: answers
ok      read below /mutexes/: 6 keys at revision \d+
ok      watch below /mutexes/: watching since revision \d+
ok      delete below /mutexes/: permitted, nothing changed
ok      read below /unlocker/audit/mutexes/: 0 keys at revision \d+
ok      watch below /unlocker/audit/mutexes/: watching since revision \d+
ok      read below /unlocker/pause/mutexes/: 0 keys at revision \d+
ok      watch below /unlocker/pause/mutexes/: watching since revision \d+
ok      read below /unlocker/waiters/mutexes/: 0 keys at revision \d+
ok      watch below /unlocker/waiters/mutexes/: watching since revision \d+
ok      write below /unlocker/audit/mutexes/: permitted, nothing changed
ok      read below /unlocker/leader/mutexes/: 0 keys at revision \d+
ok      watch below /unlocker/leader/mutexes/: watching since revision \d+
ok      write and delete below /unlocker/leader/mutexes/: permitted, nothing changed
ok      get a lease for the election: granted and revoked
$`, stdout)

	e.Guard("ada", "secret", "/mutexes/")
	code, stdout, stderr = call(t, t.Context(), "config", "check", "--connect")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stdout, "\nFAILED  use etcd without a user: etcdserver: user name is empty: etcd has authentication on: set etcd.username")
	require.Equal(t, "unlocker: 1 of 2 attempts failed\n", stderr)

	t.Setenv("UNLOCKER_ETCD_PASSWORD", "secret")
	code, stdout, stderr = call(t, t.Context(), "config", "check", "--connect", "--etcd-username=ada")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stdout, "\nok      delete below /mutexes/: permitted, nothing changed\n")
	require.Contains(t, stdout, "\nFAILED  write and delete below /unlocker/leader/mutexes/: etcdserver: permission denied: user \"ada\" needs readwrite on [/unlocker/")
	require.Equal(t, "unlocker: 10 of 16 attempts failed\n", stderr)

	code, stdout, stderr = call(t, t.Context(), "config", "check", "--connect", "--etcd-username=ada", "--etcd-tls-ca-file=absent")
	require.Equal(t, exitFailure, code)
	require.Equal(t, "ok (no file: flags, environment and defaults)\n", stdout)
	require.Equal(t, "unlocker: etcd.tls.ca_file: open absent: no such file or directory\n", stderr)
	code, _, _ = call(t, t.Context(), "config", "check", "--connect", "--reaper-mode=brave")
	require.Equal(t, exitUsage, code)
	require.Len(t, e.Keys(""), 6)
}
