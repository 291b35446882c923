package config

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/require"
)

func TestPoliciesInheritWhatTheyLeaveOut(t *testing.T) {
	const file = `policies:
  - &first {match: "deploy/**", mode: dry-run, grace: 10m}
  - match: batch/*
    mode: ""
  - match: "[a-c]{x,y}?"
    grace: 3s
  - *first
`
	path := write(t, filepath.Join(t.TempDir(), "unlocker.yaml"), file)
	c, _, err := Load(given(t, "--config", path, "--reaper-mode=off", "--reaper-grace=7s"))
	require.NoError(t, err)
	require.Equal(t, []Policy{
		{"deploy/**", "dry-run", 10 * time.Minute},
		{"batch/*", "off", 7 * time.Second},
		{"[a-c]{x,y}?", "off", 3 * time.Second},
		{"deploy/**", "dry-run", 10 * time.Minute},
	}, c.Policies)

	printed, err := c.YAML()
	require.NoError(t, err)
	require.Contains(t, string(printed), `
policies:
  - match: deploy/**
    mode: dry-run
    grace: 10m
  - match: batch/*
    mode: "off"
    grace: 7s
  - match: '[a-c]{x,y}?'
    mode: "off"
    grace: 3s
`)
	readBack(t, c)
}

func TestPoliciesBuiltInCode(t *testing.T) {
	c := Default()
	c.Policies = []Policy{{"a", "off", time.Minute}, {"b", "", time.Minute}}
	require.EqualError(t, c.Validate(), `policies[1].mode: "" is none of enforce, dry-run, off`)
	c.Policies[1] = Policy{"b", "enforce", time.Second}
	require.EqualError(t, c.Validate(), `policies[1].grace: must be at least reaper.clock_tolerance (2s), not 1s`)
	c.Policies[1].Grace = 2 * time.Second
	require.NoError(t, c.Validate())
}

// What docs/configuration.md says about patterns, and that a pattern which passes can be matched with.
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
	require.NoError(t, c.Validate())

	for key, prefix := range map[string]string{"/a": "/ab/", "/mutexes-leader": "/mutexes/", "a": "/a/", "/a/b/": "/a/c/"} {
		c.Election.Key, c.Prefix = key, prefix
		require.NoError(t, c.Validate(), "%s beside %s", key, prefix)
	}
	c.Election.Enabled, c.Election.Key, c.Prefix = false, "/a", "/a/"
	require.NoError(t, c.Validate(), "nothing is written by an election that is off")
}
