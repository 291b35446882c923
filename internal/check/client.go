package check

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

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Options configure a Client.
type Options struct {
	// URLs are the web listeners of the replicas of one deployment, each with its path
	// prefix, if any.
	URLs []string
	// Timeout bounds the whole check.
	Timeout time.Duration
	// CAFile has the trusted authorities; if empty, those of the system are trusted.
	// CertFile and KeyFile must be given together. ServerName is the name expected in the
	// server certificate if that is not the host of the URL.
	CAFile, CertFile, KeyFile, ServerName string
	// Username and PasswordFile are for basic auth and must be given together.
	Username, PasswordFile string
}

// Client queries daemons. It follows no redirects and ignores proxy settings, so that
// only the daemon itself can answer.
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

// Ask queries all daemons concurrently for what the rules need. It returns one Answer for
// each URL, with an error if the daemon did not answer within the timeout or before ctx
// was done.
func (c *Client) Ask(ctx context.Context, rules Rules) []Answer {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	defer c.http.CloseIdleConnections()
	answers := make([]Answer, len(c.bases))
	var asking sync.WaitGroup
	for i, base := range c.bases {
		asking.Go(func() {
			answers[i] = Answer{URL: base}
			answers[i].Err = c.ask(ctx, rules, &answers[i])
		})
	}
	asking.Wait()
	return answers
}

func (c *Client) ask(ctx context.Context, rules Rules, a *Answer) error {
	if err := c.get(ctx, a.URL, "status", &a.Status); err != nil {
		return err
	}
	if err := plausible(a.Status); err != nil {
		return err
	}
	if err := c.fetch(ctx, rules.Lock, a); err != nil {
		return err
	}
	if rules.Forced == 0 {
		return nil
	}
	var list api.ForcedList
	if err := c.get(ctx, a.URL, "forced-unlocks?limit=500", &list); err != nil {
		return err
	}
	a.Forced = list.Forced
	return nil
}

// fetch queries the one lock to check, or the locks to name in the output.
func (c *Client) fetch(ctx context.Context, name string, a *Answer) error {
	switch {
	case name == "":
		return c.locks(ctx, a)
	case a.blind() == "": // the daemon reads the lock from etcd
		return c.lock(ctx, name, a)
	}
	return nil
}

// maxCount exceeds the number of locks that fit into etcd.
const maxCount = 1 << 40

// plausible refuses JSON that is not the status of a daemon. Absent counts would read as
// no locks.
func plausible(s api.Status) error {
	for _, state := range api.States() {
		if n, ok := s.Locks[state]; !ok || n < 0 || n > maxCount {
			return fmt.Errorf("is not an unlocker daemon: its status has no count of %s locks", state)
		}
	}
	if s.Now.IsZero() {
		return errors.New("is not an unlocker daemon: its status has no time")
	}
	return nil
}

// locks queries the locks to name in the output, if there are any.
func (c *Client) locks(ctx context.Context, a *Answer) error {
	for _, pair := range [][2]string{{overdue, expired}, {undated, malformed}} {
		if a.Status.Locks[pair[0]]+a.Status.Locks[pair[1]] == 0 {
			continue
		}
		var page api.LockPage
		if err := c.get(ctx, a.URL, "locks?limit=200&state="+pair[0]+","+pair[1], &page); err != nil {
			return err
		}
		a.Locks = append(a.Locks, page.Locks...)
	}
	return nil
}

// lock queries one lock. The daemon has answered with its status before, so a 404 with an
// error of the API means that the lock does not exist.
func (c *Client) lock(ctx context.Context, name string, a *Answer) error {
	var detail api.LockDetail
	err := c.get(ctx, a.URL, "locks/"+segment(name), &detail)
	var refused refusal
	if errors.As(err, &refused) && refused.code == http.StatusNotFound && refused.words != "" {
		return nil
	}
	if err != nil {
		return err
	}
	if detail.State == "" {
		return errors.New("is not an unlocker daemon: a lock has no state")
	}
	a.Lock = &detail.Lock
	return nil
}

// segment encodes a name as one segment of a path, in which "." and ".." must be escaped.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
