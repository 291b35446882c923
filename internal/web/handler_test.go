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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/web/live"
	"github.com/etcd-unlocker/unlocker/internal/web/page"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// source notes what it was asked for.
type source struct {
	query  api.Query
	name   string
	limit  int
	next   string
	err    error
	inside chan struct{} // where set, Status waits until it is closed
	asked  chan struct{}
}

func (s *source) Locks(_ context.Context, q api.Query) (api.LockPage, error) {
	s.query = q
	return api.LockPage{Locks: []api.Lock{{Name: "<b>\x1b\u202e", State: "held"}}, Matched: 1, Next: s.next}, s.err
}

func (s *source) Windows(ctx context.Context, queries []api.Query) ([]api.LockPage, time.Duration, error) {
	page, err := s.Locks(ctx, queries[0])
	return []api.LockPage{page}, 0, err
}

func (s *source) Changed() <-chan struct{} { return nil }

func (s *source) Lock(_ context.Context, name string) (api.LockDetail, error) {
	s.name = name
	return api.LockDetail{Lock: api.Lock{Name: name}, Verdict: &verdict.Verdict{}}, s.err
}

func (s *source) Forced(name string, limit int) []api.Forced {
	s.name, s.limit = name, limit
	return []api.Forced{{Name: "a", Trigger: "expiry"}}
}

func (s *source) History(_ context.Context, name string) (api.History, error) {
	s.name = name
	return api.History{Name: name}, s.err
}

func (s *source) Native(context.Context) (api.NativeList, error) {
	return api.NativeList{Prefixes: []api.NativePrefix{{Prefix: "/locks/"}}}, s.err
}

func (s *source) Waiters(name string, limit int) api.WaiterList {
	s.name = name
	return api.WaiterList{Name: name, Waiters: []api.Waiter{{Revision: int64(limit)}}}
}

func (s *source) Deadlocks() api.DeadlockList {
	return api.DeadlockList{Deadlocks: []api.Deadlock{{More: 7}}}
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

func newServer(t *testing.T, s Source, prefix string) (*httptest.Server, *etcdtest.Log) {
	t.Helper()
	log := &etcdtest.Log{}
	h, err := New(Options{Source: s, Events: stoppedHub(t), PathPrefix: prefix, Logger: log.Logger()})
	require.NoError(t, err)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server, log
}

// stoppedHub has no streams: internal/app tests those.
func stoppedHub(t *testing.T) *live.Hub {
	t.Helper()
	hub := live.New(&source{}, (&etcdtest.Log{}).Logger())
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, hub.Run(stopped))
	return hub
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
		"history":               {"GET", "/api/v1/history?name=a/b", 200, `"name": "a/b"`},
		"history of no name":    {"GET", "/api/v1/history", 400, `"error": "name: lock name \"\" is empty"`},
		"status":                {"GET", "/api/v1/status", 200, `"version": "v"`},
		"waiters":               {"GET", "/api/v1/waiters?name=a/b&limit=7", 200, `"create_revision": 7`},
		"waiters for no name":   {"GET", "/api/v1/waiters", 400, `"error": "name: lock name \"\" is empty"`},
		"deadlocks":             {"GET", "/api/v1/deadlocks", 200, `"more_flows": 7`},
		"native":                {"GET", "/api/v1/native", 200, `"prefix": "/locks/"`},
		"parameter of native":   {"GET", "/api/v1/native?limit=1", 400, `unknown parameter \"limit\": want none`},
		"elsewhere":             {"GET", "/api/v2/locks", 404, `"error": "no such path`},
		"favicon":               {"GET", "/favicon.ico", 404, `"error": "no such path`},
		"post":                  {"POST", "/api/v1/locks", 405, `"error": "allowed here: GET, HEAD"`},
		"unlock":                {"POST", "/api/v1/locks/a/unlock", 403, `"error": "web.allow_unlock is off`},
		"delete":                {"DELETE", "/api/v1/locks/a", 405, `"error": "allowed here: GET, HEAD"`},
		"unlock many, get":      {"GET", "/api/v1/unlock", 405, `"error": "allowed here: POST"`},
		"pauses, put":           {"PUT", "/api/v1/pauses", 405, `"error": "allowed here: DELETE, GET, HEAD, POST"`},
		"pauses, head":          {"HEAD", "/api/v1/pauses", 200, ""},
		"no name":               {"GET", "/api/v1/locks/", 400, `"error": "lock name \"\" is empty"`},
		"empty segment":         {"GET", "/api/v1/locks/a//b", 400, "empty segment"},
		"name is not UTF-8":     {"GET", "/api/v1/locks/%FF", 400, "is not UTF-8"},
		"unknown parameter":     {"GET", "/api/v1/locks?stat=held", 400, `unknown parameter \"stat\": want state, q, hostname, owner, silent, sort, limit, after`},
		"parameter of no lock":  {"GET", "/api/v1/locks/a?state=held", 400, `unknown parameter \"state\": want none`},
		"unknown state":         {"GET", "/api/v1/locks?state=dead", 400, `unknown state \"dead\": want held, overdue, expired, undated, malformed, orphaned`},
		"events, head":          {"HEAD", "/api/v1/events", 200, ""},
		"events, post":          {"POST", "/api/v1/events", 405, `"error": "allowed here: GET, HEAD"`},
		"events, parameter":     {"GET", "/api/v1/events?sort=name", 400, `unknown parameter \"sort\": want state, q, hostname, owner, silent, limit`},
		"events, state":         {"GET", "/api/v1/events?state=dead", 400, `unknown state \"dead\"`},
		"events, stopped":       {"GET", "/api/v1/events?state=held", 503, "too many event streams"},
		"page events, head":     {"HEAD", "/events", 200, ""},
		"page events, state":    {"GET", "/events?state=dead", 400, `unknown state \"dead\"`},
		"page events, stopped":  {"GET", "/events?state=held", 503, "too many event streams"},
		"limit 0":               {"GET", "/api/v1/locks?limit=0", 400, "limit: must be 1 to 1000"},
		"limit too large":       {"GET", "/api/v1/forced-unlocks?limit=1001", 400, "limit: must be 1 to 1000"},
		"limit is not a number": {"GET", "/api/v1/locks?limit=many", 400, `\"many\"`},
		"unknown order":         {"GET", "/api/v1/locks?sort=age", 400, `sort: unknown order \"age\": want name, urgency`},
		"bad query":             {"GET", "/api/v1/locks?a;b", 400, "malformed query"},
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := newServer(t, &source{}, "")
			resp, body := get(t, c.method, server.URL+c.path)
			require.Equal(t, c.status, resp.status, body)
			require.Contains(t, body, c.body)
			want := "application/json; charset=utf-8"
			if strings.HasSuffix(name, "events, head") {
				want = "text/event-stream"
			}
			require.Equal(t, want, resp.header.Get("Content-Type"))
			require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
			require.Equal(t, "nosniff", resp.header.Get("X-Content-Type-Options"))
			require.Contains(t, resp.header.Get("Content-Security-Policy"), "default-src 'none'")
			require.Equal(t, c.status == http.StatusServiceUnavailable, resp.header.Get("Retry-After") != "")
			if c.status == http.StatusMethodNotAllowed {
				require.Contains(t, body, "allowed here: "+resp.header.Get("Allow")+`"`)
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

// The links of names that a browser would resolve have a slash after them.
func TestNamesOfDotsInPaths(t *testing.T) {
	for _, name := range []string{".", ".."} {
		s, u := &source{}, &unlocker{}
		h, err := New(Options{Source: s, Events: stoppedHub(t), Unlocker: u, Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/locks/"+name+"%2F?live=1", nil))
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, name, s.name)
		r := httptest.NewRequest(http.MethodPost, "/api/v1/locks/"+name+"%2F/unlock", strings.NewReader(`{"uuid": "u"}`))
		r.Header.Set("Content-Type", "application/json")
		w = httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.Equal(t, []string{name + "|u||ada@host"}, u.asked)
	}
}

func TestPathPrefix(t *testing.T) {
	server, _ := newServer(t, &source{}, "/unlocker")
	resp, _ := get(t, "GET", server.URL+"/unlocker")
	require.Equal(t, http.StatusTemporaryRedirect, resp.status)
	require.Equal(t, "/unlocker/", resp.header.Get("Location"))
	for _, path := range []string{"/", "/api/v1/status", "/unlockerx/api/v1/status", "/unlocker//api/v1/status", "/unlocker/api/v1/../v1/status"} {
		resp, _ := get(t, "GET", server.URL+path)
		require.Equal(t, http.StatusNotFound, resp.status, path)
	}
}

func TestQuery(t *testing.T) {
	s := &source{next: "eC__"}
	server, _ := newServer(t, s, "")
	_, body := get(t, "GET", server.URL+"/api/v1/locks?state=held,overdue&state=expired&q=a%2Fb&hostname=h&owner=o&sort=urgency&limit=7")
	require.Equal(t, api.Query{States: []string{"held", "overdue", "expired"}, Contains: "a/b", Hostname: "h", Owner: "o", ByUrgency: true, Limit: 7}, s.query)
	var found api.LockPage
	require.NoError(t, json.Unmarshal([]byte(body), &found))
	require.Equal(t, 1, found.Matched)
	s.next = ""
	_, body = get(t, "GET", server.URL+"/api/v1/locks?after="+found.Next)
	require.Equal(t, api.Query{After: "eC__", Limit: page.DefaultLimit}, s.query)
	require.NotContains(t, body, "next")
	resp, _ := get(t, "GET", server.URL+"/?group=hostname&q=a")
	require.Equal(t, http.StatusOK, resp.status)
	resp, body = get(t, "GET", server.URL+"/?group=name")
	require.Equal(t, http.StatusBadRequest, resp.status)
	require.Contains(t, body, "group: must be owner or hostname")
	get(t, "GET", server.URL+"/api/v1/forced-unlocks?limit=3&name=a%2Fb+%2B1")
	require.Equal(t, 3, s.limit)
	require.Equal(t, "a/b +1", s.name)
	s.err = api.ErrAfter
	resp, body = get(t, "GET", server.URL+"/api/v1/locks?sort=name&after=!")
	require.Equal(t, http.StatusBadRequest, resp.status)
	require.Contains(t, body, `after: \"!\" is not the value of a next`)
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

// The table is needed for removals, too. Further requests wait for a moment, and not too many of them.
func TestFewRequestsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{inside: make(chan struct{}), asked: make(chan struct{}, maxInFlight+1)}
		h, err := New(Options{Source: s, Events: stoppedHub(t), Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		ask := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/status", nil))
			return w
		}
		var all sync.WaitGroup
		for range maxInFlight {
			all.Go(func() { require.Equal(t, http.StatusOK, ask().Code) })
		}
		synctest.Wait()
		start := time.Now()
		refused := ask()
		require.Equal(t, maxWait, time.Since(start))
		require.Equal(t, http.StatusServiceUnavailable, refused.Code)
		require.Equal(t, "1", refused.Header().Get("Retry-After"))
		require.Contains(t, refused.Body.String(), "try again")
		for range maxQueued {
			all.Go(func() { ask() })
		}
		synctest.Wait()
		start = time.Now()
		require.Equal(t, http.StatusServiceUnavailable, ask().Code)
		require.Zero(t, time.Since(start), "too many wait already")
		require.Len(t, s.asked, maxInFlight)
		<-time.After(maxWait)
		all.Go(func() { require.Equal(t, http.StatusOK, ask().Code, "it waits for its turn") })
		synctest.Wait()
		close(s.inside)
		all.Wait()
	})
}

// Sixty people who poll the page of one lock in the same moment, each time, all see it.
func TestManyPeoplePollOnePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := New(Options{Source: unhurried{&source{}}, Events: stoppedHub(t), Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 60 {
			all.Go(func() {
				for range 5 {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/locks/a?live=1", nil))
					require.Equal(t, http.StatusOK, w.Code)
					<-time.After(3 * time.Second)
				}
			})
		}
		all.Wait()
	})
}

// unhurried takes ten milliseconds to read a lock.
type unhurried struct{ *source }

func (unhurried) Forced(string, int) []api.Forced { return nil } // those of a source note what they are asked for

func (unhurried) Waiters(string, int) api.WaiterList { return api.WaiterList{} }

func (unhurried) Lock(context.Context, string) (api.LockDetail, error) {
	<-time.After(10 * time.Millisecond)
	return api.LockDetail{Lock: api.Lock{Name: "a"}, Verdict: &verdict.Verdict{}}, nil
}

// A page keeps the table from everything else: there is one at a time.
func TestPagesComeInTurn(t *testing.T) {
	var inside, most atomic.Int32
	get := inTurn(semaphore.NewWeighted(1), func(*http.Request, url.Values) (any, error) {
		most.Store(max(most.Load(), inside.Add(1)))
		runtime.Gosched()
		inside.Add(-1)
		return nil, nil
	})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { _, _ = get(httptest.NewRequest(http.MethodGet, "/", nil), nil) })
	}
	all.Wait()
	require.EqualValues(t, 1, most.Load())
}

func TestTheTurnIsNotAwaitedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		get := inTurn(semaphore.NewWeighted(1), func(*http.Request, url.Values) (any, error) {
			<-stuck
			return nil, nil
		})
		var all sync.WaitGroup
		all.Go(func() { _, _ = get(httptest.NewRequest(http.MethodGet, "/", nil), nil) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := get(httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(start))
		close(stuck)
		all.Wait()
	})
}

func TestNewWantsItsParts(t *testing.T) {
	_, err := New(Options{Source: &source{}})
	require.ErrorContains(t, err, "Logger")
}
