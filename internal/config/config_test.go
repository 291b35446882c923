package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const root = "../../"

func TestDefault(t *testing.T) {
	want := Config{
		Prefix: "/mutexes/",
		Etcd:   Etcd{Endpoints: []string{"127.0.0.1:2379"}, DialTimeout: 5 * time.Second, RequestTimeout: 5 * time.Second},
		Reaper: Reaper{
			Mode: "enforce", Grace: 2 * time.Second, ClockTolerance: 2 * time.Second, Settle: 15 * time.Second, StandbyDelay: 5 * time.Second,
			Freshness: 10 * time.Second, OrphanGrace: time.Minute, ProbeInterval: time.Second, BatchSize: 64, Concurrency: 1,
		},
		Election:       Election{Enabled: true, TTL: 10 * time.Second},
		ResyncInterval: 10 * time.Minute,
		Log:            Log{Level: "info", Format: "json"},
	}
	storm := &want.Reaper.Storm
	storm.MinLocks, storm.Fraction, storm.Window, storm.Delay = 10, 0.05, time.Minute, 2*time.Minute
	want.Reaper.Brake.Window = time.Hour
	want.Ops.Listen, want.Web.Listen = ":9480", ":9481"
	want.Metrics.MaxLockSeries, want.Metrics.ForcedUnlockRetention = 500, time.Hour
	require.Equal(t, want, Default())
	none, err := load("", nil)
	require.NoError(t, err)
	require.Equal(t, want, none)

	a, b := Default(), Default()
	a.Etcd.Endpoints[0] = "changed"
	require.Equal(t, "127.0.0.1:2379", b.Etcd.Endpoints[0], "two defaults must not share memory")
}

// Every field must have a line in the table of keys, in the same order, which has its name and is
// bound to it only.
func TestKeysAreTheFields(t *testing.T) {
	var c Config
	keys := c.keys()
	n := 0
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			f, name := v.Field(i), path+strings.ToLower(v.Type().Field(i).Name)
			if f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Secret]() {
				walk(f, name)
				continue
			}
			require.Less(t, n, len(keys), "no key for field %s", name)
			require.Equal(t, name, strings.NewReplacer(".", "", "_", "").Replace(keys[n].name))
			if keys[n].Type() == "policies" {
				c.Policies = make([]Policy, 1)
			}
			require.NoError(t, keys[n].Set("1"+map[string]string{"duration": "s"}[keys[n].Type()]))
			require.False(t, f.IsZero(), "key %s is not bound to its field", keys[n].name)
			f.SetZero()
			require.True(t, reflect.ValueOf(c).IsZero(), "key %s is bound to another field", keys[n].name)
			n++
		}
	}
	walk(reflect.ValueOf(&c).Elem(), "")
	require.Len(t, keys, n)
}

func TestYAMLIsTheExampleWithoutComments(t *testing.T) {
	example, err := os.ReadFile(root + "config.example.yaml")
	require.NoError(t, err)
	var kept []string
	for line := range strings.Lines(string(example)) {
		if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "#") {
			kept = append(kept, line)
		}
	}
	got := Default().YAML()
	require.Equal(t, strings.NewReplacer(`":9480"`, ":9480", `":9481"`, ":9481").Replace(strings.Join(kept, "")), string(got))
}

func TestExampleHasEveryKeyWithItsDefault(t *testing.T) {
	example, err := os.ReadFile(root + "config.example.yaml")
	require.NoError(t, err)
	s, err := parse("config.example.yaml", example)
	require.NoError(t, err)
	c := Default()
	for _, k := range c.keys() {
		if k.name != policiesKey {
			require.Contains(t, s.texts, k.name)
		}
	}
	got, err := merge(noFlags(), s)
	require.NoError(t, err)
	require.Equal(t, Default(), got)
}

func TestYAMLIsReadBack(t *testing.T) {
	c := Default()
	c.Prefix = "/a b: #/"
	c.Etcd.Endpoints = []string{"[::1]:2379", "etcd:2379"}
	c.Etcd.Username, c.Etcd.PasswordFile = "1e3", "~"
	c.Reaper.Mode, c.ResyncInterval, c.Reaper.Grace = "off", 0, 2500*time.Millisecond
	c.Reaper.RateLimit, c.Reaper.Storm.Fraction, c.Election.Enabled = 1_000_000.25, 1, false
	c.Policies = []Policy{{"**/a: #b", "off", 3 * time.Second, Brake{100, 24 * time.Hour}}, {"1e3", "dry-run", 10 * time.Minute, c.Reaper.Brake}}
	c.NativePrefixes = []string{"/locks/", "a: #/"}
	readBack(t, c)
}

func TestPasswordIsNeverShown(t *testing.T) {
	const password = "hunter2"
	c := Default()
	c.Etcd.Username, c.Etcd.Password = "root", NewSecret(password)
	require.Equal(t, password, c.Etcd.Password.Reveal())

	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("config", "config", c, "pointer", &c, "password", c.Etcd.Password)
	}
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	plainYAML, err := yaml.Marshal(c)
	require.NoError(t, err)
	printed := c.YAML()
	require.Contains(t, string(printed), "  password: <redacted>\n")

	outputs := []string{log.String(), string(asJSON), string(plainYAML), string(printed)}
	hidden := struct{ c Config }{c} // fmt calls no methods on unexported fields
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		outputs = append(outputs, fmt.Sprintf(verb, c), fmt.Sprintf(verb, &c), fmt.Sprintf(verb, hidden), fmt.Sprintf(verb, c.Etcd.Password))
	}
	for _, out := range outputs {
		require.NotEmpty(t, out)
		require.NotContains(t, out, password)
		require.NotContains(t, out, fmt.Sprintf("%x", password))
	}
	require.Contains(t, log.String(), redacted)
	require.Empty(t, Secret{}.String())
	require.Empty(t, NewSecret("").Reveal())
}

func TestFormatDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": 0, "10s": 10 * time.Second, "1m": time.Minute, "10m": 10 * time.Minute, "1h": time.Hour, "10h": 10 * time.Hour,
		"1h0m10s": time.Hour + 10*time.Second, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond, "-1m": -time.Minute,
	} {
		require.Equal(t, want, formatDuration(d))
		back, err := time.ParseDuration(want)
		require.NoError(t, err)
		require.Equal(t, d, back)
	}
}

// A person counts in days. All flags, variables and the file are read by this one parser.
func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "90s": 90 * time.Second, "-1m": -time.Minute, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
		"2d": 48 * time.Hour, "0d": 0, "1d12h": 36 * time.Hour, "1d1h1m1s": 25*time.Hour + time.Minute + time.Second, "9999d": 9999 * 24 * time.Hour,
	} {
		d, err := parseDuration(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d, text)
	}
	for _, text := range []string{"", "d", "2", "1.5d", "-1d", "1d-2h", "1d+2h", "1d2", "2h1d", "1d1d", "10000d", "1day", "1w", " 1d", "9999d2500000h"} {
		_, err := parseDuration(text)
		require.EqualError(t, err, fmt.Sprintf("%q is not a duration with a unit, such as 10s, 5m, 1h30m or 2d", text))
	}
}
