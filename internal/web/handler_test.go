package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// source notes what it was asked for.
type source struct {
	query  Query
	name   string
	limit  int
	last   string
	err    error
	inside chan struct{} // where set, Status waits until it is closed
	asked  chan struct{}
}

func (s *source) Locks(_ context.Context, q Query) ([]api.Lock, string, error) {
	s.query = q
	return []api.Lock{{Name: "<b>\x1b\u202e", State: "held"}}, s.last, s.err
}

func (s *source) Lock(_ context.Context, name string) (api.LockDetail, error) {
	s.name = name
	return api.LockDetail{Lock: api.Lock{Name: name}}, s.err
}

func (s *source) Forced(name string, limit int) []api.Forced {
	s.name, s.limit = name, limit
	return []api.Forced{{Name: "a", Trigger: "expiry"}}
}

func (s *source) Status(ctx context.Context) (api.Status, error) {
	if s.inside != nil {
		s.asked <- struct{}{}
		select {
		case <-s.inside:
		case <-ctx.Done():
			return api.Status{}, ctx.Err()
		}
	}
	return api.Status{Version: "v"}, s.err
}

func newServer(t *testing.T, s *source, prefix string) (*httptest.Server, *etcdtest.Log) {
	t.Helper()
	log := &etcdtest.Log{}
	h, err := New(Options{Source: s, PathPrefix: prefix, Logger: log.Logger()})
	require.NoError(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server, log
}

type answer struct {
	status int
	header http.Header
}

// get does not follow redirects.
func get(t *testing.T, method, url string) (a answer, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultTransport.RoundTrip(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, resp.Header}, string(text)
}

func TestPaths(t *testing.T) {
	for name, c := range map[string]struct {
		method, path string
		status       int
		body         string
	}{
		"locks":                 {"GET", "/api/v1/locks", 200, `"locks": [`},
		"locks, head":           {"HEAD", "/api/v1/locks", 200, ""},
		"lock":                  {"GET", "/api/v1/locks/a/b", 200, `"name": "a/b"`},
		"forced":                {"GET", "/api/v1/forced-unlocks", 200, `"forced_unlocks": [`},
		"status":                {"GET", "/api/v1/status", 200, `"version": "v"`},
		"elsewhere":             {"GET", "/api/v2/locks", 404, `"error": "no such path`},
		"favicon":               {"GET", "/favicon.ico", 404, `"error": "no such path`},
		"post":                  {"POST", "/api/v1/locks", 405, `"error": "the API is read-only`},
		"unlock":                {"POST", "/api/v1/locks/a/unlock", 405, `"error": "the API is read-only`},
		"delete":                {"DELETE", "/api/v1/locks/a", 405, `"error": "the API is read-only`},
		"no name":               {"GET", "/api/v1/locks/", 400, `"error": "lock name \"\" is empty"`},
		"empty segment":         {"GET", "/api/v1/locks/a//b", 400, "empty segment"},
		"name is not UTF-8":     {"GET", "/api/v1/locks/%FF", 400, "is not UTF-8"},
		"unknown parameter":     {"GET", "/api/v1/locks?stat=held", 400, `unknown parameter \"stat\": want state, q, hostname, limit, after`},
		"parameter of no lock":  {"GET", "/api/v1/locks/a?state=held", 400, `unknown parameter \"state\": want none`},
		"unknown state":         {"GET", "/api/v1/locks?state=dead", 400, `unknown state \"dead\": want held, overdue, expired, undated, malformed, orphaned`},
		"limit 0":               {"GET", "/api/v1/locks?limit=0", 400, "limit: must be 1 to 1000"},
		"limit too large":       {"GET", "/api/v1/forced-unlocks?limit=1001", 400, "limit: must be 1 to 1000"},
		"limit is not a number": {"GET", "/api/v1/locks?limit=many", 400, `\"many\"`},
		"bad cursor":            {"GET", "/api/v1/locks?after=!", 400, "is not the value of a next"},
		"bad query":             {"GET", "/api/v1/locks?a;b", 400, "malformed query"},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := newServer(t, &source{}, "")
			resp, body := get(t, c.method, server.URL+c.path)
			require.Equal(t, c.status, resp.status, body)
			require.Contains(t, body, c.body)
			require.Equal(t, "application/json; charset=utf-8", resp.header.Get("Content-Type"))
			require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
			require.Equal(t, "nosniff", resp.header.Get("X-Content-Type-Options"))
			require.Contains(t, resp.header.Get("Content-Security-Policy"), "default-src 'none'")
			if c.status == http.StatusMethodNotAllowed {
				require.Equal(t, "GET, HEAD", resp.header.Get("Allow"))
			}
			if c.method != http.MethodHead {
				require.True(t, json.Valid([]byte(body)), body)
				require.NotContains(t, body, "<b>")
				require.NotContains(t, body, "\u202e")
			}
		})
	}
}

// A name reaches the source as it is, whatever a path would make of it.
func TestNamesInPaths(t *testing.T) {
	for _, name := range []string{"a", "a/b/c", "a b", "a%2Fb", "../../etc/passwd", "a/./b", "ä/ö", "a?b#c", "a+b", "unlock", "a\nb"} {
		plain := strings.ReplaceAll(url.PathEscape(name), "%2F", "/")
		for _, escaped := range []string{url.PathEscape(name), plain} {
			for _, prefix := range []string{"", "/unlocker"} {
				s := &source{}
				server, _ := newServer(t, s, prefix)
				resp, body := get(t, "GET", server.URL+prefix+"/api/v1/locks/"+escaped)
				require.Equal(t, http.StatusOK, resp.status, body)
				require.Equal(t, name, s.name)
			}
		}
	}
}

func TestLinksOfAlertsLeadToTheLock(t *testing.T) {
	server, _ := newServer(t, &source{}, "/unlocker")
	for from, to := range map[string]string{
		"/unlocker/locks/a/b%20c": "/unlocker/api/v1/locks/a/b%20c",
		"/unlocker/locks/a%2Fb":   "/unlocker/api/v1/locks/a%2Fb",
		"/unlocker/":              "/unlocker/api/v1/status",
		"/unlocker":               "/unlocker/api/v1/status",
		"/unlocker/locks//x.test": "/unlocker/api/v1/locks//x.test",
	} {
		resp, _ := get(t, "GET", server.URL+from)
		require.Equal(t, http.StatusTemporaryRedirect, resp.status)
		require.Equal(t, to, resp.header.Get("Location"))
	}
	for _, path := range []string{"/", "/api/v1/status", "/unlockerx/api/v1/status", "/unlocker//api/v1/status", "/unlocker/api/v1/../v1/status"} {
		resp, _ := get(t, "GET", server.URL+path)
		require.Equal(t, http.StatusNotFound, resp.status, path)
	}
}

func TestQuery(t *testing.T) {
	s := &source{last: "x/\xff"}
	server, _ := newServer(t, s, "")
	_, body := get(t, "GET", server.URL+"/api/v1/locks?state=held,overdue&state=expired&q=a%2Fb&hostname=h&limit=7")
	require.Equal(t, Query{States: []string{"held", "overdue", "expired"}, Contains: "a/b", Hostname: "h", Limit: 7}, s.query)
	var page api.LockPage
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	s.last = ""
	_, body = get(t, "GET", server.URL+"/api/v1/locks?after="+page.Next)
	require.Equal(t, Query{After: "x/\xff", Limit: defaultLimit}, s.query)
	require.NotContains(t, body, "next")
	get(t, "GET", server.URL+"/api/v1/forced-unlocks?limit=3&name=a%2Fb+%2B1")
	require.Equal(t, 3, s.limit)
	require.Equal(t, "a/b +1", s.name)
}

func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		logged bool
	}{
		"no lock":  {ErrNoLock, http.StatusNotFound, false},
		"etcd":     {errors.New("etcdserver: no leader"), http.StatusBadGateway, true},
		"timeout":  {context.DeadlineExceeded, http.StatusGatewayTimeout, true},
		"too long": {errors.New(strings.Repeat("x", 1<<20)), http.StatusBadGateway, true},
	} {
		t.Run(name, func(t *testing.T) {
			server, log := newServer(t, &source{err: c.err}, "")
			resp, body := get(t, "GET", server.URL+"/api/v1/locks/a")
			require.Equal(t, c.status, resp.status)
			var e api.Error
			require.NoError(t, json.Unmarshal([]byte(body), &e))
			require.NotEmpty(t, e.Error)
			require.Less(t, len(body), 2000)
			server.Close()
			require.Equal(t, c.logged, log.String() != "", log.String())
		})
	}
}

// The table is needed for removals, too.
func TestFewRequestsAtATime(t *testing.T) {
	s := &source{inside: make(chan struct{}), asked: make(chan struct{})}
	server, _ := newServer(t, s, "")
	done := make(chan int, maxInFlight)
	for range maxInFlight {
		go func() {
			resp, err := http.Get(server.URL + "/api/v1/status")
			if err != nil {
				done <- 0
				return
			}
			_ = resp.Body.Close()
			done <- resp.StatusCode
		}()
		<-s.asked
	}
	resp, body := get(t, "GET", server.URL+"/api/v1/status")
	require.Equal(t, http.StatusServiceUnavailable, resp.status)
	require.Equal(t, "1", resp.header.Get("Retry-After"))
	require.Contains(t, body, "try again")
	close(s.inside)
	for range maxInFlight {
		require.Equal(t, http.StatusOK, <-done)
	}
	s.inside = nil
	resp, _ = get(t, "GET", server.URL+"/api/v1/status")
	require.Equal(t, http.StatusOK, resp.status)
}

// A page keeps the table from everything else: there is one at a time.
func TestPagesComeInTurn(t *testing.T) {
	var inside, most atomic.Int32
	get := inTurn(1, func(*http.Request) (any, error) {
		most.Store(max(most.Load(), inside.Add(1)))
		runtime.Gosched()
		inside.Add(-1)
		return nil, nil
	})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { _, _ = get(httptest.NewRequest(http.MethodGet, "/", nil)) })
	}
	all.Wait()
	require.EqualValues(t, 1, most.Load())

	stuck, entered := make(chan struct{}), make(chan struct{})
	get = inTurn(1, func(*http.Request) (any, error) {
		entered <- struct{}{}
		<-stuck
		return nil, nil
	})
	all.Go(func() { _, _ = get(httptest.NewRequest(http.MethodGet, "/", nil)) })
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := get(httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(stuck)
	all.Wait()
}

func TestNewWantsItsParts(t *testing.T) {
	_, err := New(Options{Source: &source{}})
	require.ErrorContains(t, err, "Logger")
}
