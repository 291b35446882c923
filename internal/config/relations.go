package config

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
)

// relation is a rule between values.
type relation struct {
	broken bool
	key    string
	with   string // the other key, whose origin the error names if key has its default
	why    string
}

// relate returns the first broken relation.
func (c Config) relate(origins map[string]string) error {
	for _, r := range slices.Concat(c.etcdRelations(), c.graceRelations(), c.placeRelations(), c.otherRelations()) {
		if r.broken {
			return fault(cmp.Or(origins[r.key], origins[r.with]), r.key, r.why)
		}
	}
	return nil
}

func (c Config) etcdRelations() []relation {
	e, tls := c.Etcd, c.Etcd.TLS
	user, password, file := e.Username != "", e.Password.Reveal() != "", e.PasswordFile != ""
	anyTLS := tls.CAFile+tls.CertFile+tls.KeyFile+tls.ServerName != ""
	return []relation{
		{password && file, "etcd.password_file", "", "cannot be combined with etcd.password"},
		{user && !password && !file, "etcd.username", "", "needs etcd.password or etcd.password_file"},
		{!user && password, "etcd.password", "", "needs etcd.username"},
		{!user && file, "etcd.password_file", "", "needs etcd.username"},
		{tls.CertFile != "" && tls.KeyFile == "", "etcd.tls.cert_file", "", "needs etcd.tls.key_file"},
		{tls.CertFile == "" && tls.KeyFile != "", "etcd.tls.key_file", "", "needs etcd.tls.cert_file"},
		// The client would ignore etcd.tls silently.
		{anyTLS && scheme(e.Endpoints[0]) == "http", "etcd.endpoints", "", "http:// is plain text and cannot be combined with etcd.tls"},
	}
}

// graceRelations are the relations of every grace. A grace must cover the differences between
// clocks that are ignored. It must also allow for one lost probe, as removals stop when a probe is
// late by more than the grace.
func (c Config) graceRelations() (all []relation) {
	tolerance, interval := c.Reaper.ClockTolerance, c.Reaper.ProbeInterval
	graces := append([]Policy{{Grace: c.Reaper.Grace}}, c.Policies...)
	for i, p := range graces {
		key := "reaper.grace"
		if i > 0 {
			key = policyName(i-1) + ".grace"
		}
		all = append(all,
			relation{p.Grace < tolerance, key, "reaper.clock_tolerance",
				fmt.Sprintf("must be at least reaper.clock_tolerance (%s), not %s", show(tolerance), show(p.Grace))},
			relation{interval > p.Grace/2, "reaper.probe_interval", key,
				fmt.Sprintf("must be at most half of %s (%s), not %s", key, show(p.Grace), show(interval))})
	}
	return all
}

// place is a prefix in etcd, and what unlocker keeps there, if anything.
type place struct{ key, shown, prefix, what string }

// placeRelations keep the locks, what unlocker writes and what it only shows apart, and count no key
// twice. An election of unlocker may be shown.
func (c Config) placeRelations() (all []relation) {
	places := []place{{"prefix", c.Prefix, c.Prefix, "locks"}}
	if c.Election.Enabled {
		places = append(places, place{"election.key", c.ElectionKey(), c.ElectionPrefix(), "candidates"})
	}
	places = append(places,
		place{"audit_prefix", c.AuditKeys(), c.AuditKeys(), "records"},
		place{"pause_prefix", c.PauseKeys(), c.PauseKeys(), "pauses"})
	for _, prefix := range c.NativePrefixes {
		places = append(places, place{"native_prefixes", prefix, prefix, ""})
	}
	for i, p := range places {
		for _, q := range places[:i] {
			under, above := strings.HasPrefix(p.prefix, q.prefix), strings.HasPrefix(q.prefix, p.prefix)
			why := fmt.Sprintf("%q overlaps with %s, %q", p.shown, q.key, q.shown)
			switch {
			case p.what == "" && q.key == "election.key":
				continue
			case p.what != "" && q.key == "prefix" && under:
				why = fmt.Sprintf("%q is under the prefix of the locks, %q: %s would be read as locks", p.shown, c.Prefix, p.what)
			case p.what != "" && q.key == "prefix":
				why = fmt.Sprintf("the prefix of the locks, %q, is under %q: locks would be read as %s", c.Prefix, p.shown, p.what)
			}
			all = append(all, relation{under || above, p.key, q.key, why})
		}
	}
	return all
}

func (c Config) otherRelations() []relation {
	s, ops, web, unlock := c.Reaper.Storm, c.Ops.Listen, c.Web.Listen, c.Web.AllowUnlock
	storms := s.MinLocks > 0
	const needed = "must be more than 0 unless reaper.storm.min_locks is 0"
	return []relation{
		{storms && s.Window <= 0, "reaper.storm.window", "", needed},
		{storms && s.Delay <= 0, "reaper.storm.delay", "", needed},
		// Or the locks that were delayed first would come due while the others still do.
		{storms && s.Delay < s.Window/2, "reaper.storm.delay", "reaper.storm.window",
			fmt.Sprintf("must be at least half of reaper.storm.window (%s), not %s", show(s.Window), show(s.Delay))},
		{overlap(ops, web), "web.listen", "ops.listen", fmt.Sprintf("%q overlaps with ops.listen, %q", web, ops)},
		{unlock && web == "", "web.allow_unlock", "web.listen", "needs web.listen"},
		{unlock && c.Web.WebConfigFile+c.Web.UserHeader == "", "web.allow_unlock", "",
			"needs users or client certificates in web.web_config_file, or web.user_header: otherwise any client could remove any lock"},
		{!unlock && c.Web.UserHeader != "", "web.user_header", "", "has no effect without web.allow_unlock"},
		// The record of each lock is logged at info before the lock is removed.
		{c.Reaper.Mode == "enforce" && c.Log.Level != "info" && c.Log.Level != "debug", "log.level", "reaper.mode",
			fmt.Sprintf("must be info or debug where reaper.mode is enforce, not %s: removed locks are recorded at info", c.Log.Level)},
	}
}

// overlap reports whether two listen addresses need the same port of the same host.
func overlap(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	return portA == portB && portA != "0" && (hostA == hostB || hostA == "" || hostB == "")
}
