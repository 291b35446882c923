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

// Options tell whom to ask, and how.
type Options struct {
	// URLs are the web listeners of the replicas of one deployment, each with the
	// path prefix where there is one.
	URLs []string
	// Timeout is for everything together.
	Timeout time.Duration
	// CAFile holds the authorities to trust, empty for those of the system.
	// CertFile and KeyFile go together. ServerName is the one expected in the
	// certificate, where that is not the host of the URL.
	CAFile, CertFile, KeyFile, ServerName string
	// Username and PasswordFile are for basic auth.
	Username, PasswordFile string
}

// Client asks daemons. It follows no redirects and no proxy settings: a daemon
// answers by itself.
type Client struct {
	bases              []string
	timeout            time.Duration
	username, password string
	http               *http.Client
}

// New checks the options and reads the files they name.
func New(o Options) (*Client, error) {
	c := &Client{timeout: o.Timeout, username: o.Username}
	if len(o.URLs) == 0 || o.Timeout <= 0 {
		return nil, errors.New("a URL and a positive timeout are needed")
	}
	for _, u := range o.URLs {
		base, err := baseOf(u)
		if err != nil {
			return nil, err
		}
		c.bases = append(c.bases, base)
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("certificate and key belong together")
	}
	if (o.Username == "") != (o.PasswordFile == "") {
		return nil, errors.New("user name and password file belong together")
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

// baseOf checks a URL. Credentials in it would show in the process list; no error
// quotes it, since there may be some.
func baseOf(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("the URL cannot be read: it must begin with http://HOST or https://HOST")
	case u.User != nil:
		return "", errors.New("the URL must hold no credentials: they belong into a file")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", errors.New("the URL must begin with http://HOST or https://HOST")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("the URL must have no query and no fragment")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// readPassword returns what the file holds, without one line end behind it, as
// the daemon reads its own.
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

// Ask asks all daemons at the same time for what the rules need. An answer that is
// not there when the time is up, or ctx done, has an error.
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

// fetch asks for the one lock, or for those that are to be named.
func (c *Client) fetch(ctx context.Context, name string, a *Answer) error {
	switch {
	case name == "":
		return c.locks(ctx, a)
	case a.blind() == "": // else it would ask etcd, in vain
		return c.lock(ctx, name, a)
	}
	return nil
}

// maxCount is more locks than any etcd holds.
const maxCount = 1 << 40

// plausible refuses what is JSON, but not the status of a daemon: absent counts
// would look like no locks at all.
func plausible(s api.Status) error {
	for _, state := range states() {
		if n, ok := s.Locks[state]; !ok || n < 0 || n > maxCount {
			return fmt.Errorf("is no unlocker: its status has no number of %s locks", state)
		}
	}
	if s.Now.IsZero() {
		return errors.New("is no unlocker: its status has no time")
	}
	return nil
}

// locks asks for those that are to be named, where there are any.
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

// lock asks for one. The status came from the same place, so that an answer of
// 404 in the form of the API's errors speaks of the lock.
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
		return errors.New("is no unlocker: a lock has no state")
	}
	a.Lock = &detail.Lock
	return nil
}

// segment encodes a name as one segment of a path, which dots alone are not.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}
