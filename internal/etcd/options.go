package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
)

// validate also fills in the discarding logger.
func (o *Options) validate() error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.DialTimeout <= 0:
		return fmt.Errorf("etcd.dial_timeout: must be positive, not %s", o.DialTimeout)
	case o.RequestTimeout <= 0:
		return fmt.Errorf("etcd.request_timeout: must be positive, not %s", o.RequestTimeout)
	}
	return cmp.Or(o.validateEndpoints(), o.validateUser())
}

func (o *Options) validateUser() error {
	switch {
	case o.Password != "" && o.PasswordFile != "":
		return errors.New("etcd.password and etcd.password_file exclude each other")
	case o.Username != "" && o.Password == "" && o.PasswordFile == "":
		return errors.New("etcd.username: needs etcd.password or etcd.password_file")
	case o.Username == "" && (o.Password != "" || o.PasswordFile != ""):
		return errors.New("etcd.password: needs etcd.username")
	}
	return nil
}

// validateEndpoints refuses what clientv3 takes in silence: it uses the first endpoint's
// scheme for all of them, and drops the TLS settings where that is http.
func (o *Options) validateEndpoints() error {
	if len(o.Endpoints) == 0 {
		return errors.New("etcd.endpoints: at least one is needed")
	}
	for _, e := range o.Endpoints {
		if err := checkEndpoint(e); err != nil {
			return fmt.Errorf("etcd.endpoints: %q: %w", e, err)
		}
		if scheme(e) != scheme(o.Endpoints[0]) {
			return fmt.Errorf("etcd.endpoints: %q: all must have the scheme of the first", e)
		}
	}
	if scheme(o.Endpoints[0]) == "http" && o.TLS.used() {
		return errors.New("etcd.endpoints: http:// with etcd.tls set; write https://, or host:port alone")
	}
	return nil
}

func scheme(endpoint string) string {
	before, _, found := strings.Cut(endpoint, "://")
	if !found {
		return ""
	}
	return before
}

func checkEndpoint(e string) error {
	if strings.HasPrefix(e, "unix:") || strings.HasPrefix(e, "unixs:") {
		return nil
	}
	hostport := e
	if s := scheme(e); s != "" {
		if s != "http" && s != "https" {
			return fmt.Errorf("unknown scheme %s", s)
		}
		u, err := url.Parse(e)
		if err != nil {
			return err
		}
		hostport = u.Host
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil || host == "" || port == "" {
		return errors.New("want host:port")
	}
	return nil
}
