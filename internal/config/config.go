// Package config loads the daemon's configuration from flags, the environment, one YAML file and defaults, in this order of precedence.
//
// It guarantees that a Config returned by Load is complete and consistent: every key in the file exists, every value has the right type and
// is in its range, and no two values contradict each other. Every check of a value that serve makes is made here. An error is one line: where
// the value was written (file and line, variable or flag), the key, and what is wrong; secrets are never part of it.
//
// It does not guarantee that the configuration works: no file named by a key is opened, no name is resolved, nothing is dialed. Unknown
// UNLOCKER_… variables are ignored, because Kubernetes injects some. The file is read once and not watched.
package config

import (
	"cmp"
	"log/slog"
	"strings"
	"time"
)

// Config is the effective configuration, a plain value. Each field is the key of the same name; the table in keys.go has the meaning, the
// default and the range of each. Copies share the endpoints and the policies. Formatting, logging or encoding it does not reveal the password.
type Config struct {
	Prefix         string
	Etcd           Etcd
	Reaper         Reaper
	Policies       []Policy // nil without any
	Election       Election
	ResyncInterval time.Duration
	Ops            struct{ Listen, WebConfigFile string }
	Web            struct{ Listen, PathPrefix, WebConfigFile string } // an empty Listen turns it off
	Metrics        struct {
		MaxLockSeries         int
		ForcedUnlockRetention time.Duration
	}
	Log Log
}

// Etcd is the section etcd: how to connect to the cluster, and as which user.
type Etcd struct {
	Endpoints                   []string
	DialTimeout, RequestTimeout time.Duration
	Username                    string
	Password                    Secret
	PasswordFile                string
	TLS                         struct{ CAFile, CertFile, KeyFile, ServerName string }
}

// Reaper is the section reaper: what is removed automatically, when and how fast.
type Reaper struct {
	Mode                                        string // enforce, dry-run or off
	Grace, ClockTolerance, Settle, StandbyDelay time.Duration
	Freshness, OrphanGrace, ProbeInterval       time.Duration
	BatchSize, Concurrency                      int
	RateLimit                                   float64 // locks per second; 0 is no limit
	Storm                                       struct {
		MinLocks     int // 0 turns storms off
		Fraction     float64
		Window, Delay time.Duration
	}
}

// Policy is an exception from Reaper for the locks whose name it matches. Load fills in the Mode and the Grace that the file leaves out.
type Policy struct {
	Match string // doublestar pattern for the whole name, without the prefix
	Mode  string
	Grace time.Duration
}

// Election is the section election.
type Election struct {
	Enabled bool
	Key     string // as configured, possibly empty: see Config.ElectionKey
	TTL     time.Duration
}

// Log is the section log.
type Log struct {
	Level, Format string // as slog.Level.UnmarshalText reads it; json or logfmt
}

// Default returns the configuration without any flag, variable or file. It is valid.
func Default() Config {
	var c Config
	for _, k := range c.keys() {
		_ = k.Set(k.def) // a literal of the table
	}
	return c
}

// ElectionKey returns the key of the election in etcd: Election.Key or, where that is empty, /unlocker/leader followed by the prefix, so
// that deployments with different prefixes hold different elections.
func (c Config) ElectionKey() string {
	return cmp.Or(c.Election.Key, "/unlocker/leader"+c.Prefix)
}

// ElectionPrefix returns the prefix of the candidates' keys: the election key and a slash.
func (c Config) ElectionPrefix() string { return strings.TrimSuffix(c.ElectionKey(), "/") + "/" }

const redacted = "<redacted>"

// Secret is a value that formatting, logging and encoding do not show; Reveal does. The zero Secret is the empty one. The value is behind a
// pointer because fmt calls no methods on unexported fields: a Config in a field of another struct must not print its password either.
// == therefore does not compare Secrets.
type Secret struct{ value *string }

// NewSecret returns a Secret that reveals s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the secret itself, for the one place that sends it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// String returns "<redacted>", or "" for the empty secret.
func (s Secret) String() string {
	if s.value == nil {
		return ""
	}
	return redacted
}

// LogValue redacts in slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText redacts in JSON, YAML and every other encoding that asks for text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
