package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func noFlags() *pflag.FlagSet { return pflag.NewFlagSet("none", pflag.ContinueOnError) }

// given parses args as the daemon does.
func given(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := noFlags()
	Flags(fs)
	require.NoError(t, fs.Parse(args))
	return fs
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestPrecedence(t *testing.T) {
	const file = "reaper: {grace: 3s}\netcd: {endpoints: [file:1]}\n"
	tests := []struct {
		name      string
		file      string
		env       map[string]string
		args      []string
		grace     time.Duration
		endpoints []string
	}{
		{"default", "", nil, nil, 2 * time.Second, []string{"127.0.0.1:2379"}},
		{"file over default", file, nil, nil, 3 * time.Second, []string{"file:1"}},
		{
			"environment over file", file, map[string]string{"UNLOCKER_REAPER_GRACE": "4s", "UNLOCKER_ETCD_ENDPOINTS": "env:1, env:2"}, nil,
			4 * time.Second, []string{"env:1", "env:2"},
		},
		{
			"flag over environment", file, map[string]string{"UNLOCKER_REAPER_GRACE": "4s", "UNLOCKER_ETCD_ENDPOINTS": "env:1"},
			[]string{"--reaper-grace=5s", "--etcd-endpoints=flag:1,flag:2", "--etcd-endpoints", "flag:3"},
			5 * time.Second, []string{"flag:1", "flag:2", "flag:3"},
		},
		{"flag equal to the default over file", file, nil, []string{"--reaper-grace=2s"}, 2 * time.Second, []string{"file:1"}},
		{"empty variable counts as not set", file, map[string]string{"UNLOCKER_REAPER_GRACE": ""}, nil, 3 * time.Second, []string{"file:1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if tt.file != "" {
				write(t, "unlocker.yaml", tt.file)
			}
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			c, source, err := Load(given(t, tt.args...))
			require.NoError(t, err)
			require.Equal(t, tt.grace, c.Reaper.Grace)
			require.Equal(t, tt.endpoints, c.Etcd.Endpoints)
			require.Equal(t, tt.file != "", source == "unlocker.yaml")
		})
	}
}

// Each key can be set by each of the three sources.
func TestEveryKeyFromEverySource(t *testing.T) {
	want := Default()
	want.Prefix = "/other/"
	want.Etcd = Etcd{
		Endpoints: []string{"a:1", "b:2"}, DialTimeout: time.Minute, RequestTimeout: time.Hour, Username: "u", Password: NewSecret("p,1"),
	}
	tls := &want.Etcd.TLS
	tls.CAFile, tls.CertFile, tls.KeyFile, tls.ServerName = "ca", "cert", "key", "name"
	want.Reaper = Reaper{
		Mode: "off", Grace: time.Second, ClockTolerance: time.Second, Settle: 0, StandbyDelay: 0, Freshness: time.Minute, OrphanGrace: time.Hour,
		ProbeInterval: 500 * time.Millisecond, BatchSize: 124, Concurrency: 1024, RateLimit: 0.25,
	}
	want.Reaper.Storm.Fraction, want.Reaper.Brake = 1, Brake{100, time.Second}
	want.Election = Election{Enabled: false, Key: "/other", TTL: 2 * time.Second}
	want.ResyncInterval = 0
	want.Ops.Listen, want.Ops.WebConfigFile = "[::1]:0", "ops.yml"
	want.Web.Listen, want.Web.PathPrefix, want.Web.WebConfigFile = "[::1]:0", "/p", "web.yml"
	want.Metrics.MaxLockSeries, want.Metrics.ForcedUnlockRetention = 0, 0
	want.Log = Log{Level: "debug", Format: "logfmt"}
	inFile := want.YAML()

	t.Run("file", func(t *testing.T) {
		path := write(t, filepath.Join(t.TempDir(), "x.yaml"), regexp.MustCompile(redacted).ReplaceAllString(string(inFile), "p,1"))
		c, source, err := Load(given(t, "--config", path))
		require.NoError(t, err)
		require.Equal(t, path, source)
		require.Equal(t, want, c)
	})
	t.Run("environment", func(t *testing.T) {
		t.Chdir(t.TempDir())
		for _, k := range want.keys() {
			if !k.fileOnly() {
				t.Setenv(k.env(), k.String())
			}
		}
		c, source, err := Load(given(t))
		require.NoError(t, err)
		require.Empty(t, source)
		require.Equal(t, want, c)
	})
	t.Run("flags", func(t *testing.T) {
		t.Chdir(t.TempDir())
		var args []string
		for _, k := range want.keys() {
			if !k.fileOnly() {
				args = append(args, "--"+k.flag()+"="+k.String())
			}
		}
		c, _, err := Load(given(t, args...))
		require.NoError(t, err)
		require.Equal(t, want, c)
	})
}

func TestRefusedFlagsAndVariables(t *testing.T) {
	tests := []struct {
		name string
		env  [2]string
		args []string
		want string
	}{
		{"bad duration", [2]string{"UNLOCKER_REAPER_GRACE", "10"}, nil,
			`UNLOCKER_REAPER_GRACE: reaper.grace: "10" is not a duration with a unit, such as 10s, 5m, 1h30m or 2d`},
		{"bad number", [2]string{"UNLOCKER_REAPER_BATCH_SIZE", "010"}, nil,
			`UNLOCKER_REAPER_BATCH_SIZE: reaper.batch_size: "010" is not a whole number in plain decimal digits`},
		{"out of range", [2]string{"UNLOCKER_REAPER_BATCH_SIZE", "125"}, nil, `UNLOCKER_REAPER_BATCH_SIZE: reaper.batch_size: must be 1 to 124, not 125`},
		{"empty element", [2]string{"UNLOCKER_ETCD_ENDPOINTS", "a:1,,b:2"}, nil, `UNLOCKER_ETCD_ENDPOINTS: etcd.endpoints: must be host:port, http://host:port, https://host:port, unix://path or unixs://path, not ""`},
		{"flag out of range", [2]string{"UNLOCKER_REAPER_FRESHNESS", "5s"}, []string{"--reaper-freshness=1s"},
			`--reaper-freshness: reaper.freshness: must be at least 2s, not 1s`},
		{"flag that contradicts a default", [2]string{}, []string{"--reaper-clock-tolerance=3s"},
			`--reaper-clock-tolerance: reaper.grace: must be at least reaper.clock_tolerance (3s), not 2s`},
		{"variable that contradicts a default", [2]string{"UNLOCKER_PREFIX", "/unlocker/"}, nil,
			`UNLOCKER_PREFIX: election.key: "/unlocker/leader/unlocker/" is under the prefix of the locks, "/unlocker/": candidates would be read as locks`},
		{"bad boolean", [2]string{"UNLOCKER_ELECTION_ENABLED", "no"}, nil,
			`UNLOCKER_ELECTION_ENABLED: election.enabled: "no" is neither true nor false`},
		{"bad number", [2]string{"UNLOCKER_REAPER_RATE_LIMIT", "NaN"}, nil,
			`UNLOCKER_REAPER_RATE_LIMIT: reaper.rate_limit: "NaN" is not a number in plain decimal digits`},
		{"empty list", [2]string{}, []string{"--etcd-endpoints="}, `--etcd-endpoints: etcd.endpoints: must be host:port, http://host:port, https://host:port, unix://path or unixs://path, not ""`},
		{"relation over two sources", [2]string{"UNLOCKER_ETCD_PASSWORD", "hunter2"}, []string{"--etcd-password-file=f", "--etcd-username=u"},
			`--etcd-password-file: etcd.password_file: cannot be combined with etcd.password`},
		{"password in an endpoint", [2]string{"UNLOCKER_ETCD_ENDPOINTS", "https://u:hunter2@a:1"}, nil,
			`UNLOCKER_ETCD_ENDPOINTS: etcd.endpoints: endpoint 1 must not contain an @: credentials belong in etcd.username and etcd.password`},
		{"empty path", [2]string{}, []string{"--config="}, `--config: must not be empty`},
		{"named file missing", [2]string{}, []string{"--config=missing.yaml"},
			`reading the configuration: open missing.yaml: no such file or directory`},
		{"directory", [2]string{}, []string{"--config=."}, `reading the configuration: read .: is a directory`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			c, _, err := Load(given(t, tt.args...))
			require.EqualError(t, err, tt.want)
			require.Equal(t, Config{}, c)
		})
	}
}

func TestFlagTypesAreCheckedWhenParsed(t *testing.T) {
	fs := noFlags()
	Flags(fs)
	require.EqualError(t, fs.Parse([]string{"--reaper-grace=10"}),
		`invalid argument "10" for "--reaper-grace" flag: "10" is not a duration with a unit, such as 10s, 5m, 1h30m or 2d`)
	require.EqualError(t, fs.Parse([]string{"--policies=x"}), "unknown flag: --policies")
	require.NoError(t, fs.Parse([]string{"--election-enabled=false", "--election-enabled"}))
	require.Equal(t, "true", fs.Lookup("election-enabled").Value.String())
	require.Contains(t, fs.FlagUsages(), "(default 1m)")
	require.Contains(t, fs.FlagUsages(), "(default [127.0.0.1:2379])")
}

// Kubernetes sets these for Services in the namespace whose names begin with unlocker. No key may
// have such a name.
func TestVariablesOfKubernetesAreIgnored(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{
		"UNLOCKER_SERVICE_HOST", "UNLOCKER_SERVICE_PORT", "UNLOCKER_SERVICE_PORT_OPS", "UNLOCKER_PORT", "UNLOCKER_PORT_9480_TCP",
		"UNLOCKER_PORT_9480_TCP_ADDR", "UNLOCKER_OPS_SERVICE_HOST", "UNLOCKER_OPS_PORT", "UNLOCKER_REAPER", "UNLOCKER_ETCD", "UNLOCKER_POLICIES", "UNLOCKER_NO_SUCH_KEY",
	} {
		t.Setenv(name, "tcp://10.0.0.1:9480")
	}
	c, _, err := Load(given(t))
	require.NoError(t, err)
	require.Equal(t, Default(), c)

	injected := regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_.*)?)$`)
	ofChildren := regexp.MustCompile(`^UNLOCKER_(LOCK|FENCING)_`) // set by `unlocker lock` for its child
	names := map[string]bool{}
	for _, k := range c.keys() {
		require.NotRegexp(t, injected, k.env())
		require.NotRegexp(t, ofChildren, k.env())
		require.False(t, names[k.env()] || names[k.flag()], "%s shares a name with another key", k.name)
		names[k.env()], names[k.flag()] = true, true
	}
}

// A file that was only found in the working directory may be there to learn the password.
func TestFileOfOthers(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, here, "etcd: {endpoints: [etcd.example:2379]}")
	load := func(args ...string) error { _, _, err := Load(given(t, args...)); return err }
	require.NoError(t, load())
	for _, mode := range []fs.FileMode{0o620, 0o602} {
		require.NoError(t, os.Chmod(here, mode))
		require.ErrorContains(t, load(), fmt.Sprintf("unlocker.yaml belongs to user %d and has mode %04o: in the working directory it must be a file of yours or root's", os.Geteuid(), mode))
		require.NoError(t, load("--config", here))
	}
	require.NoError(t, os.Remove(here))
	require.NoError(t, syscall.Mkfifo(here, 0o644))
	require.ErrorContains(t, load(), "unlocker.yaml belongs to user", "another user's would have every command wait for ever")
	require.NoError(t, os.Remove(here))
	write(t, here, "etcd: {endpoints: [etcd.example:2379]}")
	require.NoError(t, os.Chmod(here, 0o644))
	require.NoError(t, load())
	if os.Geteuid() == 0 { // only root can give files away
		require.NoError(t, os.Chown(here, 65534, -1))
		require.ErrorContains(t, load(), "unlocker.yaml belongs to user 65534 and has mode 0644")
	}
}

func TestFindFile(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.yaml"), filepath.Join(dir, "second.yaml")
	find := func(args ...string) string {
		path, err := findFile(given(t, args...), []string{first, second})
		require.NoError(t, err)
		return path
	}
	require.Empty(t, find())
	write(t, second, "")
	require.Equal(t, second, find())
	write(t, first, "")
	require.Equal(t, first, find())
	require.Equal(t, "other.yaml", find("--config", "other.yaml"))
	require.Equal(t, []string{"unlocker.yaml", "/etc/unlocker/unlocker.yaml"}, searchPaths())
}
