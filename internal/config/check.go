package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxBatchSize: etcd allows 128 operations per level of a transaction (--max-txn-ops), and nested transactions share what the level above
// leaves them: 128 − batch_size. A removal compares three values, so 125 would be the last that works; one is left for what comes.
const maxBatchSize = 124

// keyError is what is wrong with the value of one key; Load adds where the value was written.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string { return e.key + ": " + e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

// Validate reports the first key, in the order of the file, whose value is out of its range, or else the first broken relation between two values.
// Load has called it already; it is for a Config that was built in code.
func (c Config) Validate() error {
	for _, k := range c.keys() {
		if err := k.check(); err != nil {
			return &keyError{k.name, err}
		}
	}
	return c.Etcd.relations()
}

// relations checks what the values of the etcd section mean to each other.
func (e Etcd) relations() error {
	secret := e.Password.Reveal() != "" || e.PasswordFile != ""
	broken := func(key, why string) error { return &keyError{key, errors.New(why)} }
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
	return &keyError{"etcd.endpoints", fmt.Errorf("%q is plain text and cannot be combined with %s", e.Endpoints[plain], with)}
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
