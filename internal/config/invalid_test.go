package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// One file and one exact line for each error; the line follows the file's path.
func TestInvalidFiles(t *testing.T) {
	tests := []struct{ name, want string }{
		{"storm-hold-short", `:3: reaper.storm.hold: must be at least reaper.storm.window (5m), not 2m`},
		{"grace-long", `:2: reaper.grace: must be 0s to 24h, not 25h`},
		{"log-level-loses-records", `:2: log.level: must be info or debug where locks are removed: their records are written at info, not at warn`},
		{"unknown-key", `:3: reaper.graec: unknown key`},
		{"unknown-section", `:1: reapr: unknown key`},
		{"upper-case", `:1: Reaper: unknown key`},
		{"upper-case-nested", `:2: reaper.Grace: unknown key`},
		{"dotted-key", `:1: reaper.grace: unknown key: write one section for each part before a dot`},
		{"empty-key", `:1: "": unknown key`},
		{"key-with-newline", `:1: "a\nb": unknown key`},
		{"key-is-list", `:1: "": unknown key`},
		{"merge-key", `:2: etcd.<<: unknown key`},
		{"forgotten-space", `:1: etcd.password:…: unknown key`},
		{"duplicate-key", `:4: reaper.grace: given twice, first in line 2`},
		{"duplicate-section", `:3: log: given twice, first in line 1`},
		{"section-is-scalar", `:1: etcd: must be a mapping, not a string`},
		{"section-is-list", `:1: etcd: must be a mapping, not a list`},
		{"value-is-mapping", `:2: reaper.grace: must be a duration such as 10s, not a mapping`},
		{"value-missing", `:2: reaper.grace: has no value: write one, or leave the key out`},
		{"top-level-list", `:2: must be a mapping of keys to values, not a list`},
		{"top-level-scalar", `:1: must be a mapping of keys to values, not a string`},
		{"second-document", `:2: a second YAML document: there must be only one`},
		{"syntax", `:3: not valid YAML: found character that cannot start any token`},
		{"password-like-alias", `: not valid YAML: unknown anchor: a value that begins with * must be quoted`},
		{"password-is-number", `:3: etcd.password: must be a string, not a number: put it in quotes`},
		{"password-redacted", `:3: etcd.password: is what config print shows in place of the password: write the password itself`},
		{"string-is-boolean", `:2: ops.web_config_file: must be a string, not a boolean: put it in quotes`},
		{"string-is-date", `:3: etcd.tls.server_name: must be a string, not a date: put it in quotes`},
		{"number-is-string", `:2: reaper.batch_size: must be a whole number, not a string`},
		{"number-is-fraction", `:2: reaper.batch_size: must be a whole number, not a number with a fraction`},
		{"number-is-hexadecimal", `:2: reaper.batch_size: "0x10" is no whole number in plain decimal digits`},
		{"number-too-large", `:2: reaper.batch_size: "9223372036854775808" is too large`},
		{"duration-without-unit", `:2: reaper.grace: "10" has no unit: write a duration such as 10s, 5m or 1h30m`},
		{"duration-of-days", `:2: metrics.forced_unlock_retention: "1d" is no duration: write one such as 10s, 5m or 1h30m`},
		{"duration-is-boolean", `:1: resync_interval: must be a duration such as 10s, not a boolean`},
		{"list-is-string", `:2: etcd.endpoints: must be a list of strings, not a string`},
		{"list-of-numbers", `:2: etcd.endpoints: must be a list of strings, not a number: put it in quotes`},
		{"list-of-lists", `:2: etcd.endpoints: must be a list of strings, not a list`},
		{"list-with-comma", `:2: etcd.endpoints: an element of the list must not contain a comma`},
		{"prefix-empty", `:1: prefix: must not be empty`},
		{"prefix-without-slash", `:1: prefix: "/mutexes" must end with a slash`},
		{"prefix-all", `:1: prefix: "/" would take all of etcd for locks`},
		{"endpoints-empty", `:2: etcd.endpoints: must name at least one endpoint`},
		{"endpoint-empty", `:2: etcd.endpoints: endpoint 2 is empty`},
		{"endpoint-without-port", `:2: etcd.endpoints: "etcd.example" is none of host:port, http://host:port, https://host:port, unix://path, unixs://path`},
		{"endpoint-url-without-port", `:2: etcd.endpoints: "https://etcd" is none of host:port, http://host:port, https://host:port, unix://path, unixs://path`},
		{"endpoint-with-path", `:2: etcd.endpoints: "https://etcd:2379/v3" is none of host:port, http://host:port, https://host:port, unix://path, unixs://path`},
		{"endpoint-scheme", `:2: etcd.endpoints: "tcp://etcd:2379" is none of host:port, http://host:port, https://host:port, unix://path, unixs://path`},
		{"endpoint-port-range", `:2: etcd.endpoints: "etcd:65536" is none of host:port, http://host:port, https://host:port, unix://path, unixs://path`},
		{"endpoint-credentials", `:2: etcd.endpoints: endpoint 1 must not contain an @: credentials belong into etcd.username and etcd.password`},
		{"plain-and-tls-keys", `:2: etcd.endpoints: "http://etcd:2379" is plain text and cannot be combined with etcd.tls`},
		{"plain-and-https", `:2: etcd.endpoints: "http://b:2379" is plain text and cannot be combined with an https:// or unixs:// endpoint`},
		{"dial-timeout-zero", `:2: etcd.dial_timeout: must be more than 0, not 0s`},
		{"request-timeout-negative", `:2: etcd.request_timeout: must be more than 0, not -1s`},
		{"username-without-password", `:2: etcd.username: needs etcd.password or etcd.password_file`},
		{"password-without-username", `:2: etcd.password: needs etcd.username`},
		{"password-file-without-username", `:2: etcd.password_file: needs etcd.username`},
		{"two-passwords", `:4: etcd.password_file: cannot be combined with etcd.password`},
		{"certificate-without-key", `:3: etcd.tls.cert_file: needs etcd.tls.key_file`},
		{"key-without-certificate", `:3: etcd.tls.key_file: needs etcd.tls.cert_file`},
		{"mode", `:2: reaper.mode: "dryrun" is none of enforce, dry-run, off`},
		{"grace-negative", `:2: reaper.grace: must be 0s to 24h, not -1s`},
		{"freshness-short", `:2: reaper.freshness: must be at least 2s, not 1s`},
		{"orphan-grace-short", `:2: reaper.orphan_grace: must be at least 1s, not 999ms`},
		{"batch-size-zero", `:2: reaper.batch_size: must be 1 to 124, not 0`},
		{"batch-size-large", `:2: reaper.batch_size: must be 1 to 124, not 125`},
		{"concurrency", `:2: reaper.concurrency: must be 1 to 1024, not 1025`},
		{"resync-short", `:1: resync_interval: must be 0 (off) or at least 1s, not 500ms`},
		{"web-listen", `:2: web.listen: "9481" is no address such as :9480 or 127.0.0.1:9480`},
		{"web-path-prefix-slash", `:2: web.path_prefix: "/unlocker/" is no path such as /unlocker: it begins with a slash, ends in none, and holds letters, digits, -, _, . and slashes`},
		{"web-path-prefix-relative", `:2: web.path_prefix: "unlocker" is no path such as /unlocker: it begins with a slash, ends in none, and holds letters, digits, -, _, . and slashes`},
		{"web-path-prefix-characters", `:2: web.path_prefix: "/a b" is no path such as /unlocker: it begins with a slash, ends in none, and holds letters, digits, -, _, . and slashes`},
		{"listen-empty", `:2: ops.listen: "" is no address such as :9480 or 127.0.0.1:9480`},
		{"listen-port-only", `:2: ops.listen: "9480" is no address such as :9480 or 127.0.0.1:9480`},
		{"listen-service-name", `:2: ops.listen: ":metrics" is no address such as :9480 or 127.0.0.1:9480`},
		{"max-lock-series", `:2: metrics.max_lock_series: must be 0 to 100000, not 100001`},
		{"retention-negative", `:2: metrics.forced_unlock_retention: must be at least 0s, not -1h`},
		{"log-level", `:2: log.level: "warning" is none of debug, info, warn, error`},
		{"log-format", `:2: log.format: "text" is none of json, logfmt`},
		{"web-read-only", `:2: web.read_only: unknown key`},
		{"grace-below-tolerance", `:2: reaper.grace: must be at least reaper.clock_tolerance (2s), not 1s`},
		{"tolerance-above-grace", `:2: reaper.grace: must be at least reaper.clock_tolerance (3s), not 2s`},
		{"tolerance-negative", `:2: reaper.clock_tolerance: must be at least 0s, not -1s`},
		{"settle-negative", `:2: reaper.settle: must be 0s to 24h, not -15s`},
		{"standby-delay-negative", `:2: reaper.standby_delay: must be 0s to 24h, not -5s`},
		{"probe-interval-zero", `:2: reaper.probe_interval: must be more than 0, not 0s`},
		{"probe-interval-long", `:2: reaper.probe_interval: must be at most half of reaper.grace (2s), not 1.001s`},
		{"probe-interval-policy", `:3: reaper.probe_interval: must be at most half of policies[1].grace (4s), not 3s`},
		{"rate-limit-negative", `:2: reaper.rate_limit: must be at least 0, not -0.5`},
		{"rate-limit-infinite", `:2: reaper.rate_limit: ".inf" is no number in plain decimal digits`},
		{"rate-limit-exponent", `:2: reaper.rate_limit: "1e3" is no number in plain decimal digits`},
		{"rate-limit-octal", `:2: reaper.rate_limit: "010" is no number in plain decimal digits`},
		{"rate-limit-is-string", `:2: reaper.rate_limit: must be a number, not a string`},
		{"storm-min-locks", `:3: reaper.storm.min_locks: must be at least 0, not -1`},
		{"storm-fraction", `:3: reaper.storm.fraction: must be 0 to 1, not 50`},
		{"storm-window-long", `:3: reaper.storm.window: must be 0s to 1h, not 1h0m1s`},
		{"storm-window-zero", `:3: reaper.storm.window: must be more than 0 unless reaper.storm.min_locks is 0`},
		{"storm-hold-zero", `:3: reaper.storm.hold: must be more than 0 unless reaper.storm.min_locks is 0`},
		{"storm-hold-negative", `:4: reaper.storm.hold: must be at least 0s, not -1s`},
		{"storm-unknown-key", `:3: reaper.storm.holds: unknown key`},
		{"policies-is-mapping", `:1: policies: must be a list of mappings, not a mapping`},
		{"policies-missing", `:1: policies: has no value: write one, or leave the key out`},
		{"policy-is-string", `:3: policies[1]: must be a mapping, not a string`},
		{"policy-is-null", `:2: policies[0]: must be a mapping, not null`},
		{"policy-unknown-key", `:3: policies[0].mach: unknown key`},
		{"policy-duplicate-key", `:4: policies[0].grace: given twice, first in line 3`},
		{"policy-merge-key", `:3: policies[1].<<: unknown key`},
		{"policy-by-index", `:3: policies[0]: unknown key`},
		{"policy-match-missing", `:3: policies[1].match: is missing: a policy needs the names it is for`},
		{"policy-match-empty", `:2: policies[0].match: must not be empty`},
		{"policy-match-pattern", `:3: policies[1].match: "deploy/{a,b" is no valid pattern`},
		{"policy-match-with-prefix", `:2: policies[0].match: "/mutexes/deploy/**" matches no lock: a name neither begins nor ends with a slash, and the prefix is not part of it`},
		{"policy-match-is-number", `:2: policies[0].match: must be a string, not a number: put it in quotes`},
		{"policy-mode", `:3: policies[0].mode: "dryrun" is none of enforce, dry-run, off`},
		{"policy-grace-without-unit", `:3: policies[0].grace: "10" has no unit: write a duration such as 10s, 5m or 1h30m`},
		{"policy-grace-below-tolerance", `:4: policies[1].grace: must be at least reaper.clock_tolerance (2s), not 1s`},
		{"policy-grace-zero", `:3: policies[0].grace: must be at least reaper.clock_tolerance (2s), not 0s`},
		{"election-enabled", `:2: election.enabled: must be true or false, not a string`},
		{"election-key-all", `:2: election.key: "/" would take all of etcd for candidates`},
		{"election-key-under-prefix", `:2: election.key: "/mutexes/leader" lies under the prefix of the locks, "/mutexes/": candidates would be taken for locks`},
		{"election-key-is-prefix", `:2: election.key: "/mutexes" lies under the prefix of the locks, "/mutexes/": candidates would be taken for locks`},
		{"election-key-above-prefix", `:3: election.key: the prefix of the locks lies under "/a": "/a/locks/"`},
		{"election-ttl-fraction", `:2: election.ttl: must be whole seconds, not 2.5s`},
		{"election-ttl-short", `:2: election.ttl: must be at least 2s, not 1s`},
	}
	listed := map[string]bool{}
	for _, tt := range tests {
		path := "testdata/invalid-" + tt.name + ".yml"
		listed[path] = true
		t.Run(tt.name, func(t *testing.T) {
			_, source, err := Load(given(t, "--config", path))
			require.EqualError(t, err, path+tt.want)
			require.Equal(t, path, source)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
	files, err := filepath.Glob("testdata/*.yml")
	require.NoError(t, err)
	for _, path := range files {
		require.True(t, listed[path], "%s is not in the table", path)
	}
}

func TestValidFiles(t *testing.T) {
	tests := []struct{ name, file string }{
		{"empty", ""},
		{"only comments", "# nothing\n"},
		{"only a separator", "---\n"},
		{"end of document", "prefix: /mutexes/\n...\n"},
		{"sections whose keys are commented out", "reaper:\n  # grace: 1s\netcd:\n  tls:\n"},
		{"byte order mark and CRLF", "\ufeffprefix: /mutexes/\r\nlog:\r\n  level: info\r\n"},
		{"aliases", "etcd: {dial_timeout: &five 5s, request_timeout: *five, endpoints: [&e 127.0.0.1:2379]}\n"},
		{"JSON", `{"prefix": "/mutexes/", "reaper": {"batch_size": 16, "grace": "2s"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, filepath.Join(t.TempDir(), "unlocker.yaml"), tt.file)
			c, _, err := Load(given(t, "--config", path))
			require.NoError(t, err)
			require.Equal(t, Default(), c)
		})
	}
}

func TestEndpointsAndTLS(t *testing.T) {
	tests := []struct {
		endpoints []string
		ca        string
		tls       bool
	}{
		{[]string{"etcd:2379", "[::1]:2379"}, "", false},
		{[]string{"http://etcd:2379", "http://etcd:2379/"}, "", false},
		{[]string{"unix:///run/etcd.sock"}, "", false},
		{[]string{"etcd:2379", "unix:///run/etcd.sock"}, "ca.pem", true},
		{[]string{"etcd:2379", "https://[::1]:2379"}, "", true},
		{[]string{"unixs:///run/etcd.sock"}, "", true},
	}
	for _, tt := range tests {
		c := Default()
		c.Etcd.Endpoints, c.Etcd.TLS.CAFile = tt.endpoints, tt.ca
		require.NoError(t, c.Validate(), "%v", tt.endpoints)
		require.Equal(t, tt.tls, c.Etcd.UsesTLS(), "%v", tt.endpoints)
	}
}

func TestOversizedFile(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "big"), strings.Repeat("#", maxFileSize+1))
	_, _, err := Load(given(t, "--config", path))
	require.EqualError(t, err, path+": larger than 1 MiB: this is no configuration")
}

func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	require.NoError(f, err)
	for _, path := range append(files, root+"config.example.yaml") {
		b, err := readAll(path)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := parseFile("f", data)
		if err == nil {
			var c Config
			if c, err = merge(noFlags(), settings); err == nil {
				readBack(t, c)
				return
			}
		}
		require.NotContains(t, err.Error(), "\n")
		require.Regexp(t, "^f:", err.Error())
	})
}

// readBack requires that a valid configuration survives printing.
func readBack(t *testing.T, c Config) {
	t.Helper()
	require.NoError(t, c.Validate())
	if c.Etcd.Password.Reveal() != "" {
		return
	}
	out, err := c.YAML()
	require.NoError(t, err)
	settings, err := parseFile("printed", out)
	require.NoError(t, err)
	got, err := merge(noFlags(), settings)
	require.NoError(t, err)
	require.Equal(t, c, got)
}
