// Package config loads the configuration of the daemon from flags, the environment, one YAML file
// and defaults, in this order of precedence.
//
// Guaranteed: a Config returned by Load is complete and consistent. Every key in the file exists,
// every value has the right type and is in its range, and no two values contradict each other.
// All checks of values are made here. An error is one line: where the value was written (file and
// line, variable or flag), the key, and what is wrong. It never contains a secret.
//
// Not guaranteed: that the configuration works. No file named by a key is opened, no name is
// resolved, and nothing is dialed. Unknown UNLOCKER_… variables are ignored, because Kubernetes
// sets some. The file is read once and not watched.
package config

import (
	"cmp"
	"strings"
	"time"
)

// Config is the effective configuration, a plain value. Each field is the key of the same name. The
// table in keys.go has their meanings, defaults and ranges. Copies share the endpoints and the
// policies. Formatting, logging or encoding a Config does not reveal the password.
type Config struct {
	Prefix         string
	Etcd           Etcd
	Reaper         Reaper
	Policies       []Policy // nil if there are none
	Election       Election
	ResyncInterval time.Duration
	AuditPrefix    string // as configured, possibly empty: see Config.AuditKeys
	PausePrefix    string // as configured, possibly empty: see Config.PauseKeys
	WaitersPrefix  string // as configured, possibly empty: see Config.WaitersKeys
	AskPrefix      string // as configured, possibly empty: see Config.AskKeys
	NativePrefixes []string
	Ops            struct {
		Listen, WebConfigFile string
		PProf                 bool
	}
	Web     Web
	Metrics struct {
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
	TLS                         TLS
}

// TLS is the section etcd.tls: PEM files, and the name that the certificates of all endpoints must
// have instead of the hosts of the endpoints.
type TLS struct{ CAFile, CertFile, KeyFile, ServerName string }

// Reaper is the section reaper: what is removed automatically, when and how fast.
type Reaper struct {
	Mode                                        string // enforce, dry-run or off
	Grace, ClockTolerance, Settle, StandbyDelay time.Duration
	Freshness, OrphanGrace, ProbeInterval       time.Duration
	BatchSize, Concurrency                      int
	RateLimit                                   float64 // locks per second; 0 means no limit
	Storm                                       Storm
	Brake                                       Brake
}

// Storm is the section reaper.storm: when so many locks come due at once that further ones are
// delayed.
type Storm struct {
	MinLocks      int // 0 disables storms
	Fraction      float64
	Window, Delay time.Duration
}

// Brake is the section brake, of reaper and of a policy: how many locks of a name may expire and be removed in a row
// within a time before the next one is kept.
type Brake struct {
	MaxForced int // 0 disables the brake
	Window    time.Duration
}

// Policy is an exception from Reaper for the locks whose names match. Load sets what the file omits.
type Policy struct {
	Match string // doublestar pattern for the whole name, without the prefix
	Mode  string
	Grace time.Duration
	Brake Brake
}

// Election is the section election.
type Election struct {
	Enabled bool
	Key     string // as configured, possibly empty: see Config.ElectionKey
	TTL     time.Duration
}

// Web is the section web. An empty Listen disables it.
type Web struct {
	Listen, PathPrefix, WebConfigFile string
	AllowUnlock                       bool
	UserHeader                        string
}

// Log is the section log.
type Log struct {
	Level, Format string // as slog.Level.UnmarshalText reads it; json or logfmt
}

// Default returns the configuration without flags, variables or a file. It is valid.
func Default() Config {
	var c Config
	for _, k := range c.keys() {
		_ = k.Set(k.def) // a valid literal in the table
	}
	return c
}

// ElectionKey returns the key of the election in etcd: Election.Key or, if that is empty,
// /unlocker/leader followed by the prefix. So deployments with different prefixes have different
// elections.
func (c Config) ElectionKey() string {
	return cmp.Or(c.Election.Key, "/unlocker/leader"+c.Prefix)
}

// ElectionPrefix returns the prefix of the candidates' keys: the election key and a slash.
func (c Config) ElectionPrefix() string { return strings.TrimSuffix(c.ElectionKey(), "/") + "/" }

// AuditKeys returns the prefix of the records of removals, which ends with a slash: AuditPrefix
// or, if that is empty, /unlocker/audit followed by the prefix.
func (c Config) AuditKeys() string { return c.under(c.AuditPrefix, "/unlocker/audit") }

// PauseKeys returns the prefix of the pauses' keys, likewise.
func (c Config) PauseKeys() string { return c.under(c.PausePrefix, "/unlocker/pause") }

// WaitersKeys returns the prefix of the tickets of those who wait for locks, likewise.
func (c Config) WaitersKeys() string { return c.under(c.WaitersPrefix, "/unlocker/waiters") }

// AskKeys returns the prefix of the questions to holders, likewise.
func (c Config) AskKeys() string { return c.under(c.AskPrefix, "/unlocker/ask") }

func (c Config) under(configured, base string) string {
	return strings.TrimSuffix(cmp.Or(configured, base+c.Prefix), "/") + "/"
}

const redacted = "<redacted>"

// Secret is a value that only Reveal shows; formatting, logging and encoding do not. The zero
// Secret is the empty one. Secrets cannot be compared by ==.
type Secret struct {
	// value is a pointer because fmt does not call methods of unexported fields: a Config in an
	// unexported field of another struct must not print its password.
	value *string
}

// NewSecret returns a Secret that reveals s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the value of the secret.
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

// MarshalText implements encoding.TextMarshaler, for JSON, YAML and slog. It returns String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
