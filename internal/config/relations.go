package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// keyError is what is wrong with the value of one key; Load adds where the value was written.
type keyError struct {
	key  string
	err  error
	with string // the other key of a broken relation: where it was written counts when key itself is a default
}

func (e *keyError) Error() string { return e.key + ": " + e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

// relations checks what values mean to each other.
func (c Config) relations() error {
	return cmp.Or(c.Etcd.relations(), c.graceRelations(), c.Reaper.Storm.relations(), c.electionRelations(), c.logRelations())
}

func (e Etcd) relations() error {
	secret := e.Password.Reveal() != "" || e.PasswordFile != ""
	broken := func(key, why string) error { return &keyError{key: key, err: errors.New(why)} }
	switch {
	case e.Password.Reveal() != "" && e.PasswordFile != "":
		return broken("etcd.password_file", "cannot be combined with etcd.password")
	case e.Username != "" && !secret:
		return broken("etcd.username", "needs etcd.password or etcd.password_file")
	case e.Username == "" && e.Password.Reveal() != "":
		return broken("etcd.password", "needs etcd.username")
	case e.Username == "" && e.PasswordFile != "":
		return broken("etcd.password_file", "needs etcd.username")
	case e.TLS.CertFile != "" && e.TLS.KeyFile == "":
		return broken("etcd.tls.cert_file", "needs etcd.tls.key_file")
	case e.TLS.CertFile == "" && e.TLS.KeyFile != "":
		return broken("etcd.tls.key_file", "needs etcd.tls.cert_file")
	}
	return e.plainOrTLS()
}

// plainOrTLS refuses an endpoint that says plain text where anything else says TLS: the client has one set of credentials for all of them.
func (e Etcd) plainOrTLS() error {
	plain := slices.IndexFunc(e.Endpoints, func(s string) bool { return strings.HasPrefix(s, "http://") })
	if plain < 0 || !e.UsesTLS() {
		return nil
	}
	with := "etcd.tls"
	if e.TLS == (TLS{}) {
		with = "an https:// or unixs:// endpoint"
	}
	return &keyError{key: "etcd.endpoints", err: fmt.Errorf("%q is plain text and cannot be combined with %s", e.Endpoints[plain], with)}
}

// graceRelations: offsets of clocks within the tolerance count as none, so the grace has to cover them. A probe that is late by more than the
// grace stops removals, so there must be time for one to be lost.
func (c Config) graceRelations() error {
	type grace struct {
		key string
		d   time.Duration
	}
	tolerance, interval := c.Reaper.ClockTolerance, c.Reaper.ProbeInterval
	shortest := grace{"reaper.grace", c.Reaper.Grace}
	inForce := []grace{shortest}
	for i, p := range c.Policies {
		inForce = append(inForce, grace{policyName(i) + ".grace", p.Grace})
	}
	for _, g := range inForce {
		if g.d < tolerance {
			return &keyError{
				key: g.key, with: "reaper.clock_tolerance",
				err: fmt.Errorf("must be at least reaper.clock_tolerance (%s), not %s", formatDuration(tolerance), formatDuration(g.d)),
			}
		}
		if g.d < shortest.d {
			shortest = g
		}
	}
	if interval <= shortest.d/2 {
		return nil
	}
	return &keyError{
		key: "reaper.probe_interval", with: shortest.key,
		err: fmt.Errorf("must be at most half of %s (%s), not %s", shortest.key, formatDuration(shortest.d), formatDuration(interval)),
	}
}

func (s Storm) relations() error {
	const needs = "must be more than 0 unless reaper.storm.min_locks is 0"
	switch {
	case s.MinLocks > 0 && s.Window <= 0:
		return &keyError{key: "reaper.storm.window", err: errors.New(needs)}
	case s.MinLocks > 0 && s.Hold <= 0:
		return &keyError{key: "reaper.storm.hold", err: errors.New(needs)}
	case s.MinLocks > 0 && s.Hold < s.Window:
		// Or what came due before the storm would still count when it ends.
		return &keyError{
			key: "reaper.storm.hold", with: "reaper.storm.window",
			err: fmt.Errorf("must be at least reaper.storm.window (%s), not %s", formatDuration(s.Window), formatDuration(s.Hold)),
		}
	}
	return nil
}

// ElectionKey returns the key that names the election in etcd: Election.Key or, where that is empty, /unlocker/leader with the prefix
// behind it, so that deployments with prefixes of their own do not meet.
func (c Config) ElectionKey() string {
	if c.Election.Key != "" {
		return c.Election.Key
	}
	return "/unlocker/leader" + c.Prefix
}

// ElectionPrefix returns the prefix of the candidates' keys: they lie below the key and a slash.
func (c Config) ElectionPrefix() string { return strings.TrimSuffix(c.ElectionKey(), "/") + "/" }

// electionRelations keeps candidates from being taken for locks, and locks for candidates.
func (c Config) electionRelations() error {
	if !c.Election.Enabled {
		return nil
	}
	key, below := c.ElectionKey(), c.ElectionPrefix()
	broken := func(why string) error {
		return &keyError{key: "election.key", with: "prefix", err: fmt.Errorf(why, key, c.Prefix)}
	}
	switch {
	case strings.HasPrefix(below, c.Prefix):
		return broken("%q lies under the prefix of the locks, %q: candidates would be taken for locks")
	case strings.HasPrefix(c.Prefix, below):
		return broken("the prefix of the locks lies under %q: %q")
	}
	return nil
}

// logRelations: the record of each lock that is removed is written at info, before it is. Where that is cut off, it would be lost.
func (c Config) logRelations() error {
	if c.Reaper.Mode != "enforce" || c.Log.Level == "info" || c.Log.Level == "debug" {
		return nil
	}
	return &keyError{
		key: "log.level", with: "reaper.mode",
		err: fmt.Errorf("must be info or debug where locks are removed: their records are written at info, not at %s", c.Log.Level),
	}
}
