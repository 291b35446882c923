package config

import (
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/require"
)

func TestPoliciesInheritWhatTheyOmit(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "unlocker.yaml", `policies:
  - &first {match: "deploy/**", mode: dry-run, grace: 10m, brake: {max_forced: 3, window: 24h}}
  - match: batch/*
    mode: ""
  - match: "[a-c]{x,y}?"
    grace: 3s
    brake: {max_forced: 0}
  - *first
`)
	c, _, err := Load(given(t, "--reaper-mode=off", "--reaper-grace=7s", "--reaper-brake-max-forced=5"))
	require.NoError(t, err)
	require.Equal(t, []Policy{
		{"deploy/**", "dry-run", 10 * time.Minute, Brake{3, 24 * time.Hour}},
		{"batch/*", "off", 7 * time.Second, Brake{5, time.Hour}},
		{"[a-c]{x,y}?", "off", 3 * time.Second, Brake{0, time.Hour}},
		{"deploy/**", "dry-run", 10 * time.Minute, Brake{3, 24 * time.Hour}},
	}, c.Policies)

	printed := c.YAML()
	require.Contains(t, string(printed), `
policies:
  - match: deploy/**
    mode: dry-run
    grace: 10m
    brake:
      max_forced: 3
      window: 24h
  - match: batch/*
    mode: "off"
    grace: 7s
    brake:
      max_forced: 5
      window: 1h
  - match: '[a-c]{x,y}?'
    mode: "off"
    grace: 3s
    brake:
      max_forced: 0
      window: 1h
`)
	readBack(t, c)
}

// Patterns match as docs/configuration.md says, and every accepted pattern can be matched.
func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"deploy/*", "deploy/a", true},
		{"deploy/*", "deploy/a/b", false},
		{"deploy/**", "deploy/a/b", true},
		{"deploy/**", "deploy", true},
		{"**", "a/b/c", true},
		{"deploy**", "deploy/a", false},
		{"{a,b/*}", "b/c", true},
		{"a?", "aé", true},
		{`a\*`, "a*", true},
	} {
		require.NoError(t, checkMatch(tt.pattern))
		got, err := doublestar.Match(tt.pattern, tt.name)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s %s", tt.pattern, tt.name)
	}
}

func TestElectionKey(t *testing.T) {
	c := Default()
	require.Equal(t, "/unlocker/leader/mutexes/", c.ElectionKey())
	c.Election.Key = "/other"
	require.Equal(t, "/other", c.ElectionKey())
	require.NoError(t, c.relate(nil))

	for key, prefix := range map[string]string{"/a": "/ab/", "/mutexes-leader": "/mutexes/", "a": "/a/", "/a/b/": "/a/c/"} {
		c.Election.Key, c.Prefix = key, prefix
		require.NoError(t, c.relate(nil), "%s beside %s", key, prefix)
	}
	c.Election.Enabled, c.Election.Key, c.Prefix = false, "/a", "/a/"
	require.NoError(t, c.relate(nil), "nothing is written by an election that is off")
}
