package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

func must(holds bool, be string, value any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("must be %s, not %s", be, show(value))
}

func show(value any) string {
	switch v := value.(type) {
	case time.Duration:
		return formatDuration(v)
	case string:
		return strconv.Quote(v)
	}
	return fmt.Sprint(value)
}

func within[T int | float64 | time.Duration](minimum, maximum T) func(T) error {
	return func(n T) error { return must(n >= minimum && n <= maximum, show(minimum)+" to "+show(maximum), n) }
}

func atLeast[T int | float64 | time.Duration](minimum T) func(T) error {
	return func(n T) error { return must(n >= minimum, "at least "+show(minimum), n) }
}

func oneOf(words ...string) func(string) error {
	return func(s string) error { return must(slices.Contains(words, s), "one of "+strings.Join(words, ", "), s) }
}

func checkMode(s string) error            { return oneOf("enforce", "dry-run", "off")(s) }
func checkPositive(d time.Duration) error { return must(d > 0, "more than 0", d) }
func checkResync(d time.Duration) error {
	return must(d == 0 || d >= time.Second, "0 (off) or at least 1s", d)
}

// checkTTL checks what etcd requires of a lease: whole seconds, and at least 2 s with its default
// election timeout.
func checkTTL(d time.Duration) error {
	return must(d >= 2*time.Second && d%time.Second == 0, "whole seconds, at least 2s", d)
}

// checkPrefix refuses a prefix of slashes only: fields of other programs anywhere in etcd would be
// read as orphaned fields of locks, and removed.
func checkPrefix(s string) error {
	return must(isPath(s) && strings.HasSuffix(s, "/"), "a path that ends with a slash and does not cover all of etcd", s)
}

func checkNativePrefixes(l []string) error {
	const maxNativePrefixes = 16 // limits what is listed every few seconds, and the series of the metrics
	if err := must(len(l) <= maxNativePrefixes, fmt.Sprintf("at most %d prefixes", maxNativePrefixes), len(l)); err != nil {
		return err
	}
	for _, s := range l {
		if err := checkPrefix(s); err != nil {
			return err
		}
	}
	return nil
}

func checkOptionalPath(s string) error {
	return must(s == "" || isPath(s), "empty or a path that does not cover all of etcd", s)
}

func isPath(s string) bool { return strings.Trim(s, "/") != "" && utf8.ValidString(s) }

func checkListen(s string) error {
	_, port, err := net.SplitHostPort(s)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return must(err == nil && portErr == nil, "an address such as :9480 or 127.0.0.1:9480", s)
}

func checkWebListen(s string) error {
	if s == "" {
		return nil
	}
	return checkListen(s)
}

// checkPathPrefix refuses paths that a URL would contain in another form.
func checkPathPrefix(s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./"
	ok := s == "" || path.Clean(s) == s && s != "/" && s[0] == '/' && strings.Trim(s, allowed) == ""
	return must(ok, "a path such as /unlocker, of letters, digits, -, _, . and slashes, without a slash at the end", s)
}

// checkUserHeader refuses headers of secrets, which would become public as the name of a user.
func checkUserHeader(s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	secret := slices.Contains([]string{"authorization", "proxy-authorization", "cookie"}, strings.ToLower(s))
	return must(!secret && strings.Trim(s, allowed) == "", "the name of a header of a user, such as X-Forwarded-User", s)
}

// checkMatch refuses patterns that match no name: such a policy would never apply.
func checkMatch(s string) error {
	if strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") {
		return fmt.Errorf("%q matches no lock: names exclude the prefix and neither begin nor end with a slash", s)
	}
	return must(s != "" && doublestar.ValidatePattern(s), "a valid pattern such as deploy/**", s)
}

// checkPassword refuses the output of config print that is used as a configuration file.
func checkPassword(s Secret) error {
	if s.Reveal() == redacted {
		return errors.New("is what config print shows instead of the password: write the password itself")
	}
	return nil
}

// checkEndpoints also refuses different schemes, since the client uses that of the first endpoint
// for all of them.
func checkEndpoints(l []string) error {
	if len(l) == 0 {
		l = []string{""}
	}
	for i, s := range l {
		switch {
		case strings.Contains(s, "@"): // the error must not contain it: it may have a password
			return fmt.Errorf("endpoint %d must not contain an @: credentials belong in etcd.username and etcd.password", i+1)
		case !isEndpoint(s):
			return must(false, "host:port, http://host:port, https://host:port, unix://path or unixs://path", s)
		case scheme(s) != scheme(l[0]):
			return fmt.Errorf("%q and %q differ in their scheme: all endpoints must have the same, or none", l[0], s)
		}
	}
	return nil
}

func scheme(endpoint string) string { return endpoint[:max(strings.Index(endpoint, "://"), 0)] }

func isEndpoint(s string) bool {
	rest := strings.TrimPrefix(s, scheme(s)+"://")
	if _, err := url.Parse("etcd:///" + rest); err != nil { // the URL that the client uses
		return false
	}
	switch scheme(s) {
	case "unix", "unixs":
		return rest != ""
	case "http", "https":
		return isHostPort(strings.TrimSuffix(rest, "/"))
	}
	return isHostPort(s)
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && n > 0 && host != "" && !strings.ContainsAny(host, "/ ?#")
}

type relation struct {
	broken bool
	key    string
	with   string // the other key, whose origin the error names if key has its default
	why    string
}

// relate returns the first broken relation.
func (c Config) relate(origins map[string]string) error {
	for _, r := range slices.Concat(c.otherRelations(), c.graceRelations(), c.placeRelations()) {
		if r.broken {
			return fault(cmp.Or(origins[r.key], origins[r.with]), r.key, r.why)
		}
	}
	return nil
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
		place{"pause_prefix", c.PauseKeys(), c.PauseKeys(), "pauses"},
		place{"waiters_prefix", c.WaitersKeys(), c.WaitersKeys(), "tickets"},
		place{"ask_prefix", c.AskKeys(), c.AskKeys(), "questions"})
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
	e, tls := c.Etcd, c.Etcd.TLS
	user, password, file := e.Username != "", e.Password.Reveal() != "", e.PasswordFile != ""
	anyTLS := tls.CAFile+tls.CertFile+tls.KeyFile+tls.ServerName != ""
	const needed = "must be more than 0 unless reaper.storm.min_locks is 0"
	return []relation{
		{password && file, "etcd.password_file", "", "cannot be combined with etcd.password"},
		{user && !password && !file, "etcd.username", "", "needs etcd.password or etcd.password_file"},
		{!user && password, "etcd.password", "", "needs etcd.username"},
		{!user && file, "etcd.password_file", "", "needs etcd.username"},
		{tls.CertFile != "" && tls.KeyFile == "", "etcd.tls.cert_file", "", "needs etcd.tls.key_file"},
		{tls.CertFile == "" && tls.KeyFile != "", "etcd.tls.key_file", "", "needs etcd.tls.cert_file"},
		// The client would ignore etcd.tls silently.
		{anyTLS && scheme(e.Endpoints[0]) == "http", "etcd.endpoints", "", "http:// is plain text and cannot be combined with etcd.tls"},
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
