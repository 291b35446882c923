package config

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// keys is the one table of all keys, in the order in which they are printed, each bound to its place in c. Flags, variables, the strict
// reader of the file, defaults, help, range checks and the printed form all come from it: a new key is a field of Config and a line here.
func (c *Config) keys() []key {
	e, t, r, s := &c.Etcd, &c.Etcd.TLS, &c.Reaper, &c.Reaper.Storm
	return []key{
		bind(text(), "prefix", &c.Prefix, "/mutexes/", checkPrefix,
			"etcd prefix of the locks, ending with a slash; nothing but locks may lie under it"),
		bind(list(), "etcd.endpoints", &e.Endpoints, []string{"127.0.0.1:2379"}, checkEndpoints,
			"etcd members: host:port, http://, https://, unix:// or unixs://; comma separated in flag and environment"),
		bind(duration(), "etcd.dial_timeout", &e.DialTimeout, 5*time.Second, positive,
			"time to establish a connection to etcd"),
		bind(duration(), "etcd.request_timeout", &e.RequestTimeout, 5*time.Second, positive,
			"deadline of every single etcd request"),
		bind(text(), "etcd.username", &e.Username, "", nil,
			"etcd user; needs a password or a password file"),
		bind(secret(), "etcd.password", &e.Password, Secret{}, checkPassword,
			"password of the etcd user; a flag shows in the process list, prefer the file or the environment"),
		bind(text(), "etcd.password_file", &e.PasswordFile, "", nil,
			"file that holds the password, instead of etcd.password"),
		bind(text(), "etcd.tls.ca_file", &t.CAFile, "", nil,
			"PEM file of the authorities to trust; empty: those of the system"),
		bind(text(), "etcd.tls.cert_file", &t.CertFile, "", nil,
			"PEM file of the client certificate; needs etcd.tls.key_file"),
		bind(text(), "etcd.tls.key_file", &t.KeyFile, "", nil,
			"PEM file of the client certificate's key; needs etcd.tls.cert_file"),
		bind(text(), "etcd.tls.server_name", &t.ServerName, "", nil,
			"name expected in the server's certificate; empty: the endpoint's host"),
		bind(text(), "reaper.mode", &r.Mode, "enforce", oneOf(modes()...),
			"enforce removes expired locks, dry-run only logs and counts what it would remove, off only watches and exports"),
		bind(duration(), "reaper.grace", &r.Grace, 2*time.Second, upTo(maxWait),
			"time that passes after a lock's auto_unlock_at before it is removed; at least reaper.clock_tolerance and twice reaper.probe_interval"),
		bind(duration(), "reaper.clock_tolerance", &r.ClockTolerance, 2*time.Second, atLeast(0),
			"clocks that part by no more than this count as equal"),
		bind(duration(), "reaper.settle", &r.Settle, 15*time.Second, upTo(maxWait),
			"time that owners get to renew before removals begin, after a start and after an outage"),
		bind(duration(), "reaper.standby_delay", &r.StandbyDelay, 5*time.Second, upTo(maxWait),
			"replicas that do not lead remove a lock this much later than the leader would"),
		bind(duration(), "reaper.freshness", &r.Freshness, 10*time.Second, atLeast(2*time.Second),
			"nothing is removed once the watch has been silent for this long; at least 2s"),
		bind(duration(), "reaper.orphan_grace", &r.OrphanGrace, time.Minute, atLeast(time.Second),
			"time for which leftover fields without a uuid stay unmodified before they are removed; at least 1s"),
		bind(duration(), "reaper.probe_interval", &r.ProbeInterval, time.Second, positive,
			"time between probes of whether etcd takes renewals; at most half of every grace"),
		bind(integer(), "reaper.batch_size", &r.BatchSize, 16, between(1, maxBatchSize),
			"locks removed in one transaction, at most; 1 to 124"),
		bind(integer(), "reaper.concurrency", &r.Concurrency, 1, between(1, 1024),
			"removing transactions in flight, at most; 1 to 1024"),
		bind(number(), "reaper.rate_limit", &r.RateLimit, 0, notNegative,
			"locks removed in a second, at most, a fraction allowed; 0 for no limit"),
		bind(integer(), "reaper.storm.min_locks", &s.MinLocks, 100, notNegative,
			"at least this many locks coming due at once are a storm, in which nothing is removed for a while; 0 turns it off"),
		bind(number(), "reaper.storm.fraction", &s.Fraction, 0.5, between(0.0, 1.0),
			"a storm is also more than this part of all locks with a deadline; 0 to 1"),
		bind(duration(), "reaper.storm.window", &s.Window, time.Minute, upTo(time.Hour),
			"time within which the locks of a storm come due; at most 1h"),
		bind(duration(), "reaper.storm.hold", &s.Hold, 2*time.Minute, atLeast(0),
			"time for which a storm stops removals"),
		fileOnly(bind(policies(), "policies", &c.Policies, nil, nil,
			"exceptions from reaper.mode and reaper.grace for some locks; the first that matches a lock's name decides")),
		bind(boolean(), "election.enabled", &c.Election.Enabled, true, nil,
			"whether this replica takes part in naming a leader"),
		bind(text(), "election.key", &c.Election.Key, "", checkElectionKey,
			"etcd key under which the leader is elected, apart from the locks; empty: /unlocker/leader and the prefix behind it"),
		bind(duration(), "election.ttl", &c.Election.TTL, 10*time.Second, wholeSeconds(2*time.Second),
			"time for which a leader that vanished goes on to be one; whole seconds, at least 2s"),
		bind(duration(), "resync_interval", &c.ResyncInterval, 10*time.Minute, zeroOrAtLeast(time.Second),
			"time between full listings beside the watch; at least 1s, 0 turns them off"),
		bind(text(), "ops.listen", &c.Ops.Listen, ":9480", checkListen,
			"address of /metrics, /livez and /readyz"),
		bind(text(), "ops.web_config_file", &c.Ops.WebConfigFile, "", nil,
			"exporter-toolkit web configuration (TLS, basic auth) of the ops listener"),
		bind(text(), "web.listen", &c.Web.Listen, ":9481", checkWebListen,
			"address of the read-only API; empty turns it off"),
		bind(text(), "web.path_prefix", &c.Web.PathPrefix, "", checkPathPrefix,
			"path under which a proxy passes the API on, such as /unlocker"),
		bind(text(), "web.web_config_file", &c.Web.WebConfigFile, "", nil,
			"exporter-toolkit web configuration (TLS, basic auth) of the web listener"),
		bind(integer(), "metrics.max_lock_series", &c.Metrics.MaxLockSeries, 500, between(0, 100_000),
			"locks with series of their own, at most, the longest overdue first; 0 to 100000"),
		bind(duration(), "metrics.forced_unlock_retention", &c.Metrics.ForcedUnlockRetention, time.Hour, atLeast(0),
			"time for which a forced unlock stays in the metrics"),
		bind(text(), "log.level", &c.Log.Level, "info", oneOf("debug", "info", "warn", "error"),
			"debug, info, warn or error"),
		bind(text(), "log.format", &c.Log.Format, "json", oneOf("json", "logfmt"),
			"json or logfmt"),
	}
}

// key is one setting: its names, and what can be done with its place in a Config.
type key struct {
	name  string // dotted, as in "reaper.grace"
	help  string
	value pflag.Value  // reads and writes the place; String reveals a secret
	shape shape        // what the file may hold for it
	reset func()       // writes the default
	check func() error // what is wrong with the value by itself
	show  func() any   // for printing: what yaml encodes, secrets redacted

	fileOnly bool // neither flag nor variable
}

func fileOnly(k key) key {
	k.fileOnly = true
	return k
}

// flag returns the key's flag, without the dashes in front.
func (k key) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(k.name) }

// env returns the key's environment variable.
func (k key) env() string {
	return "UNLOCKER_" + strings.ToUpper(strings.ReplaceAll(k.name, ".", "_"))
}

const configFlag = "config"

// Flags registers --config and one flag for each key in fs, with the defaults in their help. Load finds them there by name. A flag checks
// the type of its value when it is parsed; ranges and relations are checked by Load. Policies have no flag.
func Flags(fs *pflag.FlagSet) {
	fs.String(configFlag, "", "configuration file; without it "+strings.Join(searchPaths(), ", then ")+", if present")
	c := Default()
	for _, k := range c.keys() {
		if k.fileOnly {
			continue
		}
		f := fs.VarPF(k.value, k.flag(), "", k.help)
		if k.value.Type() == "bool" {
			f.NoOptDefVal = "true" // --flag alone, as with every other program
		}
	}
}
