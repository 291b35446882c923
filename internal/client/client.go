// Package client queries the HTTP API of daemons, for the commands check, show, list and
// drill, and for the latter the alerts of Alertmanager and the series of Prometheus.
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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
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

// Daemon is one daemon, as Each passes it on.
type Daemon struct {
	// URL is that of its web listener, without a slash at the end.
	URL    string
	client *Client
}

// Status returns the status of the daemon. It refuses JSON that is none: absent counts would read as no locks.
func (d Daemon) Status(ctx context.Context) (s api.Status, err error) {
	const maxCount = 1 << 40 // exceeds the number of locks that fit into etcd
	if err := d.get(ctx, "status", &s); err != nil {
		return s, err
	}
	for _, state := range api.States() {
		if n, ok := s.Locks[state]; !ok || n < 0 || n > maxCount {
			return s, fmt.Errorf("is not an unlocker daemon: its status has no count of %s locks", state)
		}
	}
	if s.Now.IsZero() {
		return s, errors.New("is not an unlocker daemon: its status has no time")
	}
	return s, nil
}

// Locks returns a page of locks.
func (d Daemon) Locks(ctx context.Context, q api.Query) (page api.LockPage, err error) {
	return page, d.get(ctx, "locks?"+q.Values().Encode(), &page)
}

// Lock returns one lock, nil if there is no such lock. A daemon reads it from etcd, which
// takes long while it cannot reach etcd.
func (d Daemon) Lock(ctx context.Context, name string) (*api.LockDetail, error) {
	var detail api.LockDetail
	err := d.get(ctx, "locks/"+segment(name), &detail)
	// Without an error of the API, another program has answered.
	if refused, is := errors.AsType[Refusal](err); is && refused.Code == http.StatusNotFound && refused.Words != "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if detail.State == "" {
		return nil, errors.New("is not an unlocker daemon: a lock has no state")
	}
	return &detail, nil
}

// Alert is an alert of Alertmanager: Status.State is suppressed where a silence or an inhibition applies.
type Alert struct {
	StartsAt time.Time              `json:"startsAt"`
	Status   struct{ State string } `json:"status"`
}

// Alerts returns the alerts about a lock, where the URL is that of an Alertmanager instead of a daemon.
func (d Daemon) Alerts(ctx context.Context, lock string) (alerts []Alert, err error) {
	return alerts, d.client.try(ctx, d.URL+"/api/v2/alerts?filter="+url.QueryEscape("lock="+strconv.Quote(lock)), &alerts)
}

// Series returns how many series a query selects now, where the URL is that of a Prometheus instead of a daemon.
func (d Daemon) Series(ctx context.Context, query string) (int, error) {
	var answer struct {
		Data struct{ Result []json.RawMessage }
	}
	err := d.client.try(ctx, d.URL+"/api/v1/query?query="+url.QueryEscape(query), &answer)
	return len(answer.Data.Result), err
}

// Forced returns up to limit of the forced unlocks of this daemon, the newest first: of the lock with
// this name, or of all locks if it is empty.
func (d Daemon) Forced(ctx context.Context, name string, limit int) ([]api.Forced, error) {
	var list api.ForcedList
	what := "forced-unlocks?limit=" + strconv.Itoa(limit)
	if name != "" {
		what += "&name=" + url.QueryEscape(name)
	}
	err := d.get(ctx, what, &list)
	return list.Forced, err
}

// segment encodes a name as one segment of a path, in which "." and ".." must be escaped.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// maxBody bounds an answer and maxError an error answer, in bytes.
const (
	maxBody  = 32 << 20
	maxError = 4 << 10
)

// Refusal is the error of an answer with a status other than 200.
type Refusal struct {
	Code int
	// Words are the error of the API, if the answer has one.
	Words string
}

func (r Refusal) Error() string {
	text := fmt.Sprintf("answers %d %s", r.Code, http.StatusText(r.Code))
	if r.Words != "" {
		text += ": " + r.Words
	}
	return text
}

// A daemon serves few requests at a time and answers 503 beyond that, which must not alert.
const (
	busyRetries = 3
	busyPause   = time.Second
)

func (d Daemon) get(ctx context.Context, what string, into any) (err error) {
	for range 1 + busyRetries {
		err = d.client.try(ctx, d.URL+"/api/v1/"+what, into)
		if refused, is := errors.AsType[Refusal](err); !is || refused.Code != http.StatusServiceUnavailable {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

func (c *Client) try(ctx context.Context, resource string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, resource, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "unlocker")
	if c.username != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		var body api.Error
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // a part of it may be enough
		_ = json.Unmarshal(text, &body)                            // it may be the page of a proxy
		return Refusal{resp.StatusCode, body.Error}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return c.explain(err)
	}
	if len(text) > maxBody {
		return fmt.Errorf("answers more than %d MiB", maxBody>>20)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("is not an unlocker daemon: %w", err)
	}
	return nil
}

// explain removes what the operator knows already, such as the URL, from an error.
func (c *Client) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("does not answer within %s", c.timeout)
	}
	if of, is := errors.AsType[*url.Error](err); is {
		err = of.Err
	}
	return fmt.Errorf("does not answer: %w", err)
}
