package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBatchSize: etcd allows 128 operations per level of a transaction (--max-txn-ops), and nested transactions share what the level above
// leaves them: 128 − batch_size. A removal compares three values, so 125 would be the last that works; one is left for what comes.
const maxBatchSize = 124

// Validate reports the first key, in the order of the file and then of the policies, whose value is out of its range, or else the first
// broken relation between two values. Load has called it already; it is for a Config that was built in code.
func (c Config) Validate() error {
	for _, k := range slices.Concat(c.keys(), c.policyKeys()) {
		if err := k.check(); err != nil {
			return &keyError{key: k.name, err: err}
		}
	}
	return c.relations()
}

// UsesTLS reports whether connections are encrypted: an endpoint says https:// or unixs://, or any key under etcd.tls is set. Endpoints without
// a scheme and unix:// ones go with the others.
func (e Etcd) UsesTLS() bool {
	return e.TLS != (TLS{}) || slices.ContainsFunc(e.Endpoints, func(s string) bool {
		return strings.HasPrefix(s, "https://") || strings.HasPrefix(s, "unixs://")
	})
}

// checkPrefix refuses the bare slash too: fields that other programs keep anywhere in etcd would be taken for leftovers of locks, and removed.
func checkPrefix(s string) error {
	switch {
	case s == "":
		return errors.New("must not be empty")
	case !strings.HasSuffix(s, "/"):
		return fmt.Errorf("%q must end with a slash", s)
	case strings.Trim(s, "/") == "":
		return fmt.Errorf("%q would take all of etcd for locks", s)
	case !utf8.ValidString(s):
		return fmt.Errorf("%q is not valid UTF-8", s)
	}
	return nil
}

// checkPassword catches the output of config print used as a file.
func checkPassword(s Secret) error {
	if s.Reveal() == redacted {
		return errors.New("is what config print shows in place of the password: write the password itself")
	}
	return nil
}

func checkEndpoints(l []string) error {
	if len(l) == 0 {
		return errors.New("must name at least one endpoint")
	}
	for i, s := range l {
		switch {
		case s == "":
			return fmt.Errorf("endpoint %d is empty", i+1)
		case strings.Contains(s, "@"): // never repeat it: what is before the @ is a password
			return fmt.Errorf("endpoint %d must not contain an @: credentials belong into etcd.username and etcd.password", i+1)
		case !isEndpoint(s):
			return fmt.Errorf("%q is none of host:port, http://host:port, https://host:port, unix://path, unixs://path", s)
		}
	}
	return nil
}

func isEndpoint(s string) bool {
	scheme, rest, found := strings.Cut(s, "://")
	switch {
	case !found:
		return isHostPort(s)
	case scheme == "unix" || scheme == "unixs":
		return rest != ""
	case scheme == "http" || scheme == "https":
		u, err := url.Parse(s)
		return err == nil && isHostPort(u.Host) && (rest == u.Host || rest == u.Host+"/")
	}
	return false
}

func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ?#") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// checkElectionKey refuses slashes alone: every key in etcd would be a candidate.
func checkElectionKey(s string) error {
	switch {
	case s != "" && strings.Trim(s, "/") == "":
		return fmt.Errorf("%q would take all of etcd for candidates", s)
	case !utf8.ValidString(s):
		return fmt.Errorf("%q is not valid UTF-8", s)
	}
	return nil
}

func checkListen(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is no address such as :9480 or 127.0.0.1:9480", s)
	}
	return nil
}

// checkWebListen takes the empty string too, which turns the listener off.
func checkWebListen(s string) error {
	if s == "" {
		return nil
	}
	return checkListen(s)
}

// checkPathPrefix takes nothing that a URL would hold in another form.
func checkPathPrefix(s string) error {
	if s != "" && (path.Clean(s) != s || s == "/" || s[0] != '/' || strings.Trim(s, pathCharacters) != "") {
		return fmt.Errorf("%q is no path such as /unlocker: it begins with a slash, ends in none, and holds letters, digits, -, _, . and slashes", s)
	}
	return nil
}

const pathCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./"
