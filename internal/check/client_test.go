package check

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// fake answers as a daemon does, or as one that is broken.
type fake struct {
	*httptest.Server
	status   api.Status
	requests chan string // as they came, escaped
}

func newFake(t *testing.T, answer Answer) *fake {
	t.Helper()
	f := &fake{status: answer.Status, requests: make(chan string, 100)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.requests <- r.Method + " " + r.URL.RequestURI()
		switch path := r.URL.EscapedPath(); {
		case path == "/api/v1/status":
			write(w, http.StatusOK, f.status)
		case path == "/api/v1/locks":
			write(w, http.StatusOK, api.LockPage{Locks: inState(answer.Locks, strings.Split(r.URL.Query().Get("state"), ",")...)})
		case path == "/api/v1/forced-unlocks":
			write(w, http.StatusOK, api.ForcedList{Forced: answer.Forced})
		case answer.Lock != nil:
			write(w, http.StatusOK, api.LockDetail{Lock: *answer.Lock})
		default:
			write(w, http.StatusNotFound, api.Error{Error: "no such lock"})
		}
	}))
	t.Cleanup(f.Close)
	return f
}

func write(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (f *fake) asked() (requests []string) {
	for {
		select {
		case r := <-f.requests:
			requests = append(requests, r)
		default:
			return requests
		}
	}
}

func ask(t *testing.T, rules Rules, timeout time.Duration, urls ...string) []Answer {
	t.Helper()
	c, err := New(Options{URLs: urls, Timeout: timeout})
	require.NoError(t, err)
	return c.Ask(t.Context(), rules)
}

const enough = time.Minute

func TestAsk(t *testing.T) {
	f := newFake(t, answer(late(overdue, "a/b", time.Minute), late(expired, "c", time.Minute), forced("d", "expiry", time.Minute, 7), func(a *Answer) {
		a.Status.Locks[malformed]++
		a.Locks = append(a.Locks, api.Lock{Name: "m", State: malformed})
	}))
	answers := ask(t, byDefault(t), enough, f.URL+"/")
	require.Len(t, answers, 1)
	a := answers[0]
	require.NoError(t, a.Err)
	require.Equal(t, f.URL, a.URL)
	require.Equal(t, f.status, a.Status)
	require.Equal(t, []string{"a/b", "c", "m"}, []string{a.Locks[0].Name, a.Locks[1].Name, a.Locks[2].Name})
	require.Equal(t, "d", a.Forced[0].Name)
	require.Equal(t, []string{"GET /api/v1/status", "GET /api/v1/locks?limit=200&state=overdue,expired",
		"GET /api/v1/locks?limit=200&state=undated,malformed", "GET /api/v1/forced-unlocks?limit=500"}, f.asked())
}

func TestAskNoMoreThanNeeded(t *testing.T) {
	f := newFake(t, answer())
	require.NoError(t, ask(t, Rules{}, enough, f.URL)[0].Err)
	require.Equal(t, []string{"GET /api/v1/status"}, f.asked())
}

func TestAskForOneLock(t *testing.T) {
	for name, path := range map[string]string{
		"a":       "a",
		"a/b":     "a%2Fb",
		"a b?c#d": "a%20b%3Fc%23d",
		"50%":     "50%25",
		"..":      "%2E%2E",
		".":       "%2E",
		"../x":    "..%2Fx",
		"ä":       "%C3%A4",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, answer(only(&api.Lock{Name: name, State: held})))
			a := ask(t, Rules{Lock: name}, enough, f.URL)[0]
			require.NoError(t, a.Err)
			require.Equal(t, name, a.Lock.Name)
			require.Equal(t, "GET /api/v1/locks/"+path, f.asked()[1])
		})
	}
	f := newFake(t, answer())
	a := ask(t, Rules{Lock: "a"}, enough, f.URL)[0]
	require.NoError(t, a.Err)
	require.Nil(t, a.Lock)
}

// A single lock is read from etcd, which takes long if etcd cannot be reached.
func TestBlindDaemonIsNotAskedForALock(t *testing.T) {
	f := newFake(t, answer(cutOff))
	require.NoError(t, ask(t, Rules{Lock: "a"}, enough, f.URL)[0].Err)
	require.Equal(t, []string{"GET /api/v1/status"}, f.asked())
}

// What a daemon, or a program in its place, may do instead of answering.
func TestBrokenDaemons(t *testing.T) {
	page := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		names   string
	}{
		"401":           {page(401, "<html>who are you</html>"), "answers 401 Unauthorized"},
		"403":           {page(403, `{"error":"not you"}`), "answers 403 Forbidden: not you"},
		"404":           {page(404, "404 page not found"), "answers 404 Not Found"},
		"500":           {page(500, `{"error":"table is closed"}`), "answers 500 Internal Server Error: table is closed"},
		"204":           {page(204, ""), "answers 204 No Content"},
		"redirect loop": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "answers 302 Found"},
		"a page":        {page(200, "<html>hello</html>"), "is not an unlocker daemon: invalid character"},
		"nothing":       {page(200, ""), "is not an unlocker daemon: unexpected end"},
		"half":          {page(200, `{"ready": true, "locks": {`), "is not an unlocker daemon: unexpected end"},
		"another JSON":  {page(200, `{"status":"success","data":[]}`), "is not an unlocker daemon: its status has no count of held locks"},
		"a list":        {page(200, `[]`), "is not an unlocker daemon: json: cannot unmarshal array"},
		"null":          {page(200, `null`), "is not an unlocker daemon"},
		"no counts":     {page(200, `{"ready":true,"etcd":{"up":true},"now":"2026-11-20T12:00:00Z"}`), "no count of held locks"},
		"no time":       {page(200, `{"ready":true,"etcd":{"up":true},"locks":{"held":1,"overdue":0,"expired":0,"undated":0,"malformed":0,"orphaned":0}}`), "has no time"},
		"negative":      {page(200, `{"now":"2026-11-20T12:00:00Z","locks":{"held":-1,"overdue":0,"expired":0,"undated":0,"malformed":0,"orphaned":0}}`), "no count of held"},
		"huge": {func(w http.ResponseWriter, _ *http.Request) {
			for block := strings.Repeat(" ", 1<<20); ; {
				if _, err := io.WriteString(w, block); err != nil {
					return
				}
			}
		}, "answers more than 32 MiB"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "{")
		}, "does not answer: unexpected EOF"},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "does not answer: EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			a := ask(t, byDefault(t), enough, server.URL)[0]
			require.ErrorContains(t, a.Err, c.names)
			r := Judge(byDefault(t), []Answer{a})
			require.Equal(t, Critical, r.State)
			requireSound(t, r.String())
		})
	}
}

// Whichever request fails, the daemon counts as one that does not answer.
func TestPartlyBrokenDaemon(t *testing.T) {
	for _, broken := range []string{"/api/v1/locks", "/api/v1/forced-unlocks", "/api/v1/locks/a"} {
		t.Run(broken, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case broken:
					write(w, http.StatusBadGateway, api.Error{Error: "etcd is away"})
				case "/api/v1/status":
					write(w, http.StatusOK, answer(counted(overdue, 1)).Status)
				default:
					write(w, http.StatusOK, struct{}{})
				}
			}))
			defer server.Close()
			rules := byDefault(t)
			if strings.HasSuffix(broken, "/a") {
				rules.Lock = "a"
			}
			a := ask(t, rules, enough, server.URL)[0]
			require.ErrorContains(t, a.Err, "answers 502 Bad Gateway: etcd is away")
			require.Equal(t, Critical, Judge(rules, []Answer{a}).State)
		})
	}
}

// A 404 that is not the API's does not say that a lock is free.
func TestForeign404(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/v1/locks/") {
			http.NotFound(w, r)
			return
		}
		write(w, http.StatusOK, answer().Status)
	}))
	defer server.Close()
	require.ErrorContains(t, ask(t, Rules{Lock: "a"}, enough, server.URL)[0].Err, "answers 404 Not Found")
}

func TestRefusedAndSilent(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	require.ErrorContains(t, ask(t, Rules{}, enough, gone.URL)[0].Err, "connection refused")

	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, says nothing
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	fine := newFake(t, answer())
	begin := time.Now()
	answers := ask(t, Rules{}, 300*time.Millisecond, "http://"+l.Addr().String(), fine.URL)
	require.Less(t, time.Since(begin), 5*time.Second)
	require.EqualError(t, answers[0].Err, "does not answer within 300ms")
	require.NoError(t, answers[1].Err, "one that is slow takes no time from the others")
	require.Equal(t, Warning, Judge(byDefault(t), answers).State)
}

// A byte now and then is not an answer.
func TestDrippingDaemon(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer server.Close()
	require.EqualError(t, ask(t, Rules{}, 200*time.Millisecond, server.URL)[0].Err, "does not answer within 200ms")
}

func TestBusyDaemonIsAskedAgain(t *testing.T) {
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 1 {
			write(w, http.StatusServiceUnavailable, api.Error{Error: "too many requests are under way"})
			return
		}
		write(w, http.StatusOK, answer().Status)
	}))
	defer server.Close()
	require.NoError(t, ask(t, Rules{}, enough, server.URL)[0].Err)
	require.EqualValues(t, 2, n.Load())
}

func TestBusyForEver(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusServiceUnavailable, api.Error{Error: "busy"})
	}))
	defer server.Close()
	require.EqualError(t, ask(t, Rules{}, 100*time.Millisecond, server.URL)[0].Err, "answers 503 Service Unavailable: busy")
}

func TestAskEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	c, err := New(Options{URLs: []string{"http://" + l.Addr().String()}, Timeout: enough})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, c.Ask(ctx, Rules{})[0].Err, "context canceled")
}
