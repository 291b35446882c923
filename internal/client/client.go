// Package client queries the HTTP API of daemons, for the commands check, show, list and
// drill, and the alerts of Alertmanager for the latter.
//
// Guaranteed: it writes nothing, all requests are GET. It returns within the timeout and
// reads a bounded amount, whatever a daemon does. It follows no redirects and ignores
// proxy settings, so that only the daemon itself can answer. An answer that is not one of
// a daemon is an error; none of its errors quotes a credential.
//
// Not guaranteed: that text in an answer is safe to print.
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	promconfig "github.com/prometheus/common/config"
)

// Options configure a Client.
type Options struct {
	// URLs are the web listeners of the replicas of one deployment, each with its path
	// prefix, if any.
	URLs []string
	// Timeout bounds each call of Each.
	Timeout time.Duration
	// CAFile has the trusted authorities; if empty, those of the system are trusted.
	// CertFile and KeyFile must be given together. ServerName is the name expected in the
	// server certificate if that is not the host of the URL.
	CAFile, CertFile, KeyFile, ServerName string
	// Username and PasswordFile are for basic auth and must be given together.
	Username, PasswordFile string
}

// Client queries daemons. It may be used concurrently.
type Client struct {
	bases              []string
	timeout            time.Duration
	username, password string
	http               *http.Client
}

// New validates the options and reads the files that they name.
func New(o Options) (*Client, error) {
	c := &Client{timeout: o.Timeout, username: o.Username}
	if len(o.URLs) == 0 || o.Timeout <= 0 {
		return nil, errors.New("a URL and a positive timeout are required")
	}
	for _, u := range o.URLs {
		base, err := baseOf(u)
		if err != nil {
			return nil, err
		}
		c.bases = append(c.bases, base)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("certificate and key must be given together")
	}
	if (o.Username == "") != (o.PasswordFile == "") {
		return nil, errors.New("user name and password file must be given together")
	}
	tls, err := promconfig.NewTLSConfig(&promconfig.TLSConfig{
		CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile, ServerName: o.ServerName})
	if err != nil {
		return nil, err
	}
	if o.PasswordFile != "" {
		if c.password, err = readPassword(o.PasswordFile); err != nil {
			return nil, err
		}
	}
	c.http = &http.Client{
		Transport:     &http.Transport{TLSClientConfig: tls},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// baseOf validates a URL. It refuses credentials, which the process list would show, and
// quotes none in errors.
func baseOf(raw string) (string, error) {
	if !strings.Contains(raw, "://") {
		if whole, err := baseOf("http://" + raw); err == nil {
			return "", fmt.Errorf("the URL must begin with http:// or https://, such as %s", whole)
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("malformed URL: it must begin with http://HOST or https://HOST")
	case u.User != nil:
		return "", errors.New("the URL must not contain credentials: use a password file")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", errors.New("the URL must begin with http://HOST or https://HOST")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("the URL must have no query and no fragment")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// readPassword returns the content of a file without its last line end, as the daemon
// reads its own password file.
func readPassword(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("password file: %w", err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 {
		return "", fmt.Errorf("password file: %s is empty", path)
	}
	return string(b), nil
}

// Len returns the number of daemons.
func (c *Client) Len() int { return len(c.bases) }

// URL returns that of the first daemon.
func (c *Client) URL() string { return c.bases[0] }

// Each calls f for each daemon concurrently, with its place among the URLs, and returns
// when all calls have. Their context ends with ctx, or after the timeout.
func (c *Client) Each(ctx context.Context, f func(ctx context.Context, i int, d Daemon)) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	defer c.http.CloseIdleConnections()
	var asking sync.WaitGroup
	for i, base := range c.bases {
		asking.Go(func() { f(ctx, i, Daemon{URL: base, client: c}) })
	}
	asking.Wait()
}
