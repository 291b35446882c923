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
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
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
func Default() (c Config) {
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

const (
	// maxWait limits durations that are added to a deadline, so that sums cannot overflow.
	maxWait = 24 * time.Hour
	// maxForced limits how many removals of a name a brake counts.
	maxForced = 100
	// maxBatchSize leaves four operations for each nested transaction, which needs three for its
	// compares: etcd allows 128 operations per level of a transaction (--max-txn-ops), and adds
	// those of a level to those of the level above.
	maxBatchSize = 124
	policiesKey  = "policies" // the one key that is a list of sections
)

type key struct {
	name  string       // dotted, as in "reaper.grace"
	place any          // pointer to its field in a Config; the type of the field is the type of the key
	def   string       // default, in the form of a flag
	check func() error // checks the value, regardless of other keys
	help  string
	other string // for policies, the key whose value is the default
}

func bind[T any](name string, place *T, def string, check func(T) error, help string) key {
	return key{name: name, place: place, def: def, help: help, check: func() error {
		if check == nil {
			return nil
		}
		return check(*place)
	}}
}

// keys returns the table of all keys, in the order of config.example.yaml, bound to c. Flags,
// variables, the reader of the file, defaults, help, checks and the printed form are derived from
// it. A new key needs a field of Config and a line here.
func (c *Config) keys() []key {
	e, t, r, s := &c.Etcd, &c.Etcd.TLS, &c.Reaper, &c.Reaper.Storm
	all := []key{
		bind("prefix", &c.Prefix, "/mutexes/", checkPrefix, "etcd prefix of the locks; must end with a slash and contain nothing but locks"),
		bind("etcd.endpoints", &e.Endpoints, "127.0.0.1:2379", checkEndpoints,
			"etcd endpoints, all with the same scheme: host:port, http://, https://, unix:// or unixs://; comma-separated in flag and environment"),
		bind("etcd.dial_timeout", &e.DialTimeout, "5s", checkPositive, "timeout for establishing a connection to etcd"),
		bind("etcd.request_timeout", &e.RequestTimeout, "5s", checkPositive, "timeout of each etcd request"),
		bind("etcd.username", &e.Username, "", nil, "etcd user; needs etcd.password or etcd.password_file"),
		bind("etcd.password", &e.Password, "", checkPassword,
			"password of the etcd user; a flag is visible in the process list: prefer the file or the environment"),
		bind("etcd.password_file", &e.PasswordFile, "", nil, "file that contains the password, instead of etcd.password"),
		bind("etcd.tls.ca_file", &t.CAFile, "", nil, "PEM file with the trusted CA certificates; empty: those of the system"),
		bind("etcd.tls.cert_file", &t.CertFile, "", nil, "PEM file with the client certificate; needs etcd.tls.key_file"),
		bind("etcd.tls.key_file", &t.KeyFile, "", nil, "PEM file with the key of the client certificate; needs etcd.tls.cert_file"),
		bind("etcd.tls.server_name", &t.ServerName, "", nil, "name expected in the server's certificate; empty: the host of the endpoint"),
		bind("reaper.mode", &r.Mode, "enforce", checkMode,
			"enforce removes expired locks, dry-run only logs and counts what it would remove, off only watches and exports metrics"),
		bind("reaper.grace", &r.Grace, "2s", within(0, maxWait),
			"how long after its auto_unlock_at a lock is removed; at least reaper.clock_tolerance and twice reaper.probe_interval, at most 24h"),
		bind("reaper.clock_tolerance", &r.ClockTolerance, "2s", atLeast(time.Second), "largest difference between clocks that is ignored; at least 1s"),
		bind("reaper.settle", &r.Settle, "15s", within(0, maxWait),
			"how long holders have to renew before removals begin, after a start and after an outage; at most 24h"),
		bind("reaper.standby_delay", &r.StandbyDelay, "5s", within(0, maxWait),
			"how much later than the leader the other replicas remove a lock; at most 24h"),
		bind("reaper.freshness", &r.Freshness, "10s", atLeast(2*time.Second), "removals stop while the watch has been silent for this long; at least 2s"),
		bind("reaper.orphan_grace", &r.OrphanGrace, "1m", atLeast(time.Second),
			"how long leftover fields without a uuid must stay unmodified before they are removed; at least 1s"),
		bind("reaper.probe_interval", &r.ProbeInterval, "1s", checkPositive,
			"interval between probes of whether etcd accepts renewals; at most half of every grace"),
		bind("reaper.batch_size", &r.BatchSize, "64", within(1, maxBatchSize), "maximum number of locks removed in one transaction; 1 to 124"),
		bind("reaper.concurrency", &r.Concurrency, "1", within(1, 1024), "maximum number of removal transactions in flight; 1 to 1024"),
		bind("reaper.rate_limit", &r.RateLimit, "0", atLeast(0.0), "maximum number of locks removed per second, may be a fraction; 0: no limit"),
		bind("reaper.storm.min_locks", &s.MinLocks, "10", atLeast(0),
			"minimum number of locks coming due within the window after which each further lock is delayed; 0 turns that off"),
		bind("reaper.storm.fraction", &s.Fraction, "0.05", within(0.0, 1.0),
			"minimum fraction of all locks with a deadline that these locks are; 0 to 1"),
		bind("reaper.storm.window", &s.Window, "1m", within(0, time.Hour), "time window in which these locks come due; at most 1h"),
		bind("reaper.storm.delay", &s.Delay, "2m", within(0, maxWait),
			"how much later each further lock is removed, once for each deadline; at least half of reaper.storm.window"),
		bind("reaper.brake.max_forced", &r.Brake.MaxForced, "0", within(0, maxForced),
			"how many locks of a name may expire and be removed in a row before the next one is kept until an operator looks; 0 turns that off; at most 100"),
		bind("reaper.brake.window", &r.Brake.Window, "1h", within(time.Second, maxWait), "time window in which these locks are removed; 1s to 24h"),
		bind[[]Policy](policiesKey, &c.Policies, "", nil,
			"exceptions from reaper.mode, reaper.grace and reaper.brake for some locks; the first policy that matches a lock's name applies"),
		bind("election.enabled", &c.Election.Enabled, "true", nil, "whether this replica takes part in the leader election"),
		bind("election.key", &c.Election.Key, "", checkOptionalPath,
			"etcd key of the leader election, outside the prefix; empty: /unlocker/leader followed by the prefix"),
		bind("election.ttl", &c.Election.TTL, "10s", checkTTL,
			"lease TTL of the leader: how long until another replica replaces one that vanished; whole seconds, at least 2s"),
		bind("resync_interval", &c.ResyncInterval, "10m", checkResync,
			"interval between full listings in addition to the watch; at least 1s, 0 turns them off"),
		bind("audit_prefix", &c.AuditPrefix, "", checkOptionalPath,
			"etcd prefix of the records of removals, outside the prefix; empty: /unlocker/audit followed by the prefix"),
		bind("pause_prefix", &c.PausePrefix, "", checkOptionalPath,
			"etcd prefix of the pauses of unlocker pause, outside the prefix; empty: /unlocker/pause followed by the prefix"),
		bind("waiters_prefix", &c.WaitersPrefix, "", checkOptionalPath,
			"etcd prefix of the tickets of those who wait for locks, outside the prefix; empty: /unlocker/waiters followed by the prefix"),
		bind("ask_prefix", &c.AskPrefix, "", checkOptionalPath,
			"etcd prefix of the questions of unlocker ask, outside the prefix; empty: /unlocker/ask followed by the prefix"),
		bind("native_prefixes", &c.NativePrefixes, "", checkNativePrefixes,
			"etcd prefixes of the locks and elections of etcd's own clients (concurrency.Mutex, etcdctl lock), which are shown and never touched; at most 16"),
		bind("ops.listen", &c.Ops.Listen, ":9480", checkListen, "listen address of /metrics, /livez and /readyz"),
		bind("ops.web_config_file", &c.Ops.WebConfigFile, "", nil, "exporter-toolkit web configuration file (TLS, basic auth) of the ops listener"),
		bind("ops.pprof", &c.Ops.PProf, "false", nil, "whether the ops listener serves profiles of the daemon below /debug/pprof/"),
		bind("web.listen", &c.Web.Listen, ":9481", checkWebListen, "listen address of the dashboard and the API; empty turns it off"),
		bind("web.path_prefix", &c.Web.PathPrefix, "", checkPathPrefix, "path prefix under which a proxy serves the API, such as /unlocker"),
		bind("web.web_config_file", &c.Web.WebConfigFile, "", nil, "exporter-toolkit web configuration file (TLS, basic auth) of the web listener"),
		bind("web.allow_unlock", &c.Web.AllowUnlock, "false", nil,
			"whether users may remove locks by the API; needs users or client certificates in web.web_config_file, or web.user_header"),
		bind("web.user_header", &c.Web.UserHeader, "", checkUserHeader,
			"header in which an authenticating proxy passes the user, such as X-Forwarded-User; only that proxy may be able to connect"),
		bind("metrics.max_lock_series", &c.Metrics.MaxLockSeries, "500", within(0, 100_000),
			"maximum number of locks with their own series, the longest overdue first; 0 to 100000"),
		bind("metrics.forced_unlock_retention", &c.Metrics.ForcedUnlockRetention, "1h", atLeast(0*time.Second),
			"how long a forced unlock stays in the metrics"),
		bind("log.level", &c.Log.Level, "info", oneOf("debug", "info", "warn", "error"), "debug, info, warn or error"),
		bind("log.format", &c.Log.Format, "json", oneOf("json", "logfmt"), "json or logfmt"),
	}
	for i := range c.Policies {
		p, at := &c.Policies[i], policyName(i)
		all = append(all, bind(at+".match", &p.Match, "", checkMatch, ""))
		for _, k := range []key{
			bind(at+".mode", &p.Mode, "", checkMode, ""), bind(at+".grace", &p.Grace, "", within(0, maxWait), ""),
			bind(at+".brake.max_forced", &p.Brake.MaxForced, "", within(0, maxForced), ""),
			bind(at+".brake.window", &p.Brake.Window, "", within(time.Second, maxWait), ""),
		} {
			k.other = "reaper" + strings.TrimPrefix(k.name, at)
			all = append(all, k)
		}
	}
	return all
}

func policyName(i int) string { return fmt.Sprintf("%s[%d]", policiesKey, i) }

// fileOnly reports whether the key has neither a flag nor a variable.
func (k key) fileOnly() bool { return strings.HasPrefix(k.name, policiesKey) }

// flag returns the name of the key's flag, without the leading dashes.
func (k key) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.name) }

const configFlag = "config"

// Flags registers --config and one flag for each key in fs, with the defaults in their help. Load
// finds them by name. Parsing a flag checks the type of its value; Load checks ranges and
// relations. Policies have no flag.
func Flags(fs *pflag.FlagSet) {
	fs.String(configFlag, "", "configuration file; if not given, "+strings.Join(searchPaths(), " or ")+", if present")
	c := Default()
	for _, k := range c.keys() {
		switch place := k.place.(type) {
		case *[]Policy:
		case *[]string:
			fs.StringSlice(k.flag(), *place, k.help)
		case *bool:
			fs.VarPF(k, k.flag(), "", k.help).NoOptDefVal = "true" // --flag without a value
		default:
			fs.Var(k, k.flag(), k.help)
		}
	}
}

func (k key) env() string { return "UNLOCKER_" + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_")) }
