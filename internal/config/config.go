// Package config loads the daemon's configuration from flags, the environment, one YAML file and defaults, in this order of precedence.
//
// It guarantees that a Config returned by Load is complete and consistent: every key named in the file exists, every value has the right
// type and lies in its range, and no two values contradict each other. Anything else is refused with one line that says where the value was
// written (file and line, variable or flag), which key it is and what is wrong with it; secrets are never part of that line.
//
// It does not guarantee that the configuration works: no file named by a key is opened, no name is resolved, nothing is dialled. It does not
// notice a misspelt environment variable either: Kubernetes injects UNLOCKER_… variables of its own, so unknown ones must be ignored. The
// file is read once; nothing watches it.
package config

import "time"

// Config is the whole effective configuration, a plain value that nothing in this package changes after Load returned it. Copies share the
// list of endpoints and that of policies. Formatting, logging or encoding it does not reveal the password.
type Config struct {
	Prefix         string        // Prefix is where the locks lie in etcd; it ends with a slash.
	Etcd           Etcd          // Etcd says how to reach the cluster.
	Reaper         Reaper        // Reaper says what is removed, when and how fast.
	Policies       []Policy      // Policies are exceptions from Reaper for some locks; the first whose Match fits a lock's name decides. Nil without any.
	Election       Election      // Election says how replicas name a leader.
	ResyncInterval time.Duration // ResyncInterval is the time between full listings beside the watch; 0 turns them off.
	Ops            Ops           // Ops is the listener for metrics and probes.
	Web            Web           // Web is the listener for the API.
	Metrics        Metrics       // Metrics bounds what is exported.
	Log            Log           // Log says what is logged and how.
}

// Etcd says how to reach the etcd cluster and as whom.
type Etcd struct {
	Endpoints      []string      // Endpoints are host:port, http(s)://host:port, unix:// or unixs://; at least one.
	DialTimeout    time.Duration // DialTimeout bounds the first connection; above 0.
	RequestTimeout time.Duration // RequestTimeout bounds every single call; above 0.
	Username       string        // Username is empty without authentication by password.
	Password       Secret        // Password is empty where PasswordFile is set; see ReadPassword.
	PasswordFile   string        // PasswordFile is the path of a file that holds nothing but the password.
	TLS            TLS           // TLS is all empty for plain text, or for https with the system's authorities.
}

// TLS names the files of a TLS connection. They are PEM; Load does not open them.
type TLS struct {
	CAFile     string // CAFile holds the authorities to trust; empty means those of the system.
	CertFile   string // CertFile holds the client certificate; set together with KeyFile or not at all.
	KeyFile    string // KeyFile holds the client certificate's key.
	ServerName string // ServerName is expected in the server's certificate instead of the endpoint's host.
}

// Reaper says what is removed automatically, when and how fast.
type Reaper struct {
	Mode           string        // Mode is "enforce", "dry-run" or "off".
	Grace          time.Duration // Grace passes after auto_unlock_at before a lock is removed; at least ClockTolerance and twice ProbeInterval.
	ClockTolerance time.Duration // ClockTolerance is how far clocks may part and still count as equal; at least 0.
	Settle         time.Duration // Settle is how long owners get to renew before removals begin, at the start and after an outage; at least 0.
	StandbyDelay   time.Duration // StandbyDelay is how much later than the leader the other replicas act; at least 0.
	Freshness      time.Duration // Freshness is how long the watch may be silent before the reaper holds; at least 2 s.
	OrphanGrace    time.Duration // OrphanGrace is how long leftovers without a uuid stay unmodified before removal; at least 1 s.
	ProbeInterval  time.Duration // ProbeInterval is the time between probes of whether etcd takes renewals; above 0, at most half of every grace.
	BatchSize      int           // BatchSize is the largest number of locks in one transaction, 1 to 124.
	Concurrency    int           // Concurrency is the largest number of transactions in flight, 1 to 1024.
	RateLimit      float64       // RateLimit is the largest number of locks removed in a second; 0 for no limit.
	Storm          Storm         // Storm says when too many locks come due at once for that many deaths.
}

// Storm says when the reaper takes many deadlines at once for an outage between owners and etcd, and holds.
type Storm struct {
	MinLocks int           // MinLocks is the smallest number of locks that is a storm; 0 turns it off.
	Fraction float64       // Fraction of all dated locks that must be exceeded as well, 0 to 1.
	Window   time.Duration // Window is the time within which they come due; at most 1 h, above 0 unless MinLocks is 0.
	Hold     time.Duration // Hold is how long the reaper then waits; above 0 unless MinLocks is 0.
}

// Election says how replicas name the leader, who acts first.
type Election struct {
	Enabled bool          // Enabled is false for a replica that does not take part.
	Key     string        // Key is as written, possibly empty; see Config.ElectionKey.
	TTL     time.Duration // TTL is how long a leader that vanished goes on to be one; whole seconds, at least 2 s.
}

// Ops is the listener for /metrics, /livez and /readyz.
type Ops struct {
	Listen        string // Listen is host:port; the host may be empty, the port 0.
	WebConfigFile string // WebConfigFile is the path of an exporter-toolkit web configuration (TLS, basic auth); may be empty.
}

// Web is the listener for the read-only API.
type Web struct {
	Listen        string // Listen is host:port like Ops.Listen; empty turns it off.
	PathPrefix    string // PathPrefix is empty, or a path that begins with a slash and ends in none.
	WebConfigFile string // WebConfigFile is like that of Ops.
}

// Metrics bounds what is exported.
type Metrics struct {
	MaxLockSeries         int           // MaxLockSeries is the largest number of locks with series of their own, 0 to 100000.
	ForcedUnlockRetention time.Duration // ForcedUnlockRetention is how long a forced unlock is remembered; at least 0.
}

// Log says what is logged and how.
type Log struct {
	Level  string // Level is "debug", "info", "warn" or "error", as slog.Level.UnmarshalText reads it.
	Format string // Format is "json" or "logfmt" (slog's text handler).
}

// Default returns the configuration that holds where no flag, variable or file says otherwise. It is valid.
func Default() Config {
	var c Config
	for _, k := range c.keys() {
		k.reset()
	}
	return c
}
