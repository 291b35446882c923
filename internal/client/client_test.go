package client

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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// status is that of a daemon without locks.
func status() api.Status {
	s := api.Status{Now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Prefix: "/mutexes/", Locks: map[string]int{}}
	for _, state := range api.States() {
		s.Locks[state] = 0
	}
	return s
}

func write(w http.ResponseWriter, status int, body any) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// fake is a daemon that knows one lock, and the requests that it got, escaped.
type fake struct {
	*httptest.Server
	requests chan string
}

func newFake(t *testing.T, name string) *fake {
	t.Helper()
	f := &fake{requests: make(chan string, 100)}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.requests <- r.Method + " " + r.URL.RequestURI()
		switch path := r.URL.EscapedPath(); {
		case path == "/api/v1/status":
			write(w, http.StatusOK, status())
		case path == "/api/v1/locks":
			write(w, http.StatusOK, api.LockPage{Locks: []api.Lock{{Name: name, State: "expired"}}, Next: name})
		case path == "/api/v1/forced-unlocks":
			write(w, http.StatusOK, api.ForcedList{Forced: []api.Forced{{Name: name}}})
		case name != "":
			write(w, http.StatusOK, api.LockDetail{Lock: api.Lock{Name: name, State: "held"}})
		default:
			write(w, http.StatusNotFound, api.Error{Error: "no such lock"})
		}
	}))
	t.Cleanup(f.Close)
	return f
}

const enough = time.Minute

func each(t *testing.T, o Options, f func(context.Context, int, Daemon)) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = enough
	}
	c, err := New(o)
	require.NoError(t, err)
	require.Equal(t, len(o.URLs), c.Len())
	c.Each(t.Context(), f)
}

// ask asks one daemon for its status.
func ask(t *testing.T, o Options) (err error) {
	t.Helper()
	each(t, o, func(ctx context.Context, _ int, d Daemon) { _, err = d.Status(ctx) })
	return err
}

func TestRequests(t *testing.T) {
	f := newFake(t, "a/b")
	each(t, Options{URLs: []string{f.URL + "/"}}, func(ctx context.Context, i int, d Daemon) {
		require.Zero(t, i)
		require.Equal(t, f.URL, d.URL)
		s, err := d.Status(ctx)
		require.NoError(t, err)
		require.Equal(t, status(), s)
		page, err := d.Locks(ctx, api.Query{States: []string{"overdue", "expired"}, Limit: 7})
		require.NoError(t, err)
		require.Equal(t, "a/b", page.Locks[0].Name)
		require.Equal(t, "a/b", page.Next)
		_, err = d.Locks(ctx, api.Query{States: []string{"undated"}, Silent: true, ByUrgency: true, Limit: 7, After: "ä b&c"})
		require.NoError(t, err)
		forced, err := d.Forced(ctx, "ä b", 9)
		require.NoError(t, err)
		require.Equal(t, "a/b", forced[0].Name)
	})
	for _, want := range []string{"status", "locks?limit=7&state=overdue%2Cexpired", "locks?after=%C3%A4+b%26c&limit=7&silent=true&sort=urgency&state=undated", "forced-unlocks?limit=9&name=%C3%A4+b"} {
		require.Equal(t, "GET /api/v1/"+want, <-f.requests)
	}
}

func TestLock(t *testing.T) {
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
			f := newFake(t, name)
			each(t, Options{URLs: []string{f.URL}}, func(ctx context.Context, _ int, d Daemon) {
				l, err := d.Lock(ctx, name)
				require.NoError(t, err)
				require.Equal(t, name, l.Name)
			})
			require.Equal(t, "GET /api/v1/locks/"+path, <-f.requests)
		})
	}
	each(t, Options{URLs: []string{newFake(t, "").URL}}, func(ctx context.Context, _ int, d Daemon) {
		l, err := d.Lock(ctx, "a")
		require.NoError(t, err)
		require.Nil(t, l)
	})
}

// A 404 that is not the API's does not say that a lock is free.
func TestForeign404(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/v1/locks/") {
			http.NotFound(w, r)
			return
		}
		write(w, http.StatusOK, status())
	}))
	defer server.Close()
	each(t, Options{URLs: []string{server.URL}}, func(ctx context.Context, _ int, d Daemon) {
		_, err := d.Lock(ctx, "a")
		require.ErrorContains(t, err, "answers 404 Not Found")
	})
}

func TestRefusedAndSilent(t *testing.T) {
	require.ErrorContains(t, ask(t, Options{URLs: []string{"http://127.0.0.1:1"}}), "connection refused")

	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, says nothing
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	silent, fine := "http://"+l.Addr().String(), newFake(t, "")
	begin := time.Now()
	require.EqualError(t, ask(t, Options{URLs: []string{silent}, Timeout: 300 * time.Millisecond}), "does not answer within 300ms")
	require.Less(t, time.Since(begin), enough/2)

	answered := make(chan struct{})
	errs := make([]error, 2)
	each(t, Options{URLs: []string{silent, fine.URL + "/"}}, func(ctx context.Context, i int, d Daemon) {
		if i == 1 {
			defer close(answered)
		} else {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			go func() {
				<-answered
				cancel()
			}()
		}
		_, errs[i] = d.Status(ctx)
	})
	require.ErrorContains(t, errs[0], "context canceled", "it was silent until the other one had answered")
	require.NoError(t, errs[1], "one that is slow takes no time from the others")
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
	require.EqualError(t, ask(t, Options{URLs: []string{server.URL}, Timeout: 200 * time.Millisecond}), "does not answer within 200ms")
}

func TestBusyDaemonIsAskedAgain(t *testing.T) {
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 1 {
			write(w, http.StatusServiceUnavailable, api.Error{Error: "too many requests are under way"})
			return
		}
		write(w, http.StatusOK, status())
	}))
	defer server.Close()
	require.NoError(t, ask(t, Options{URLs: []string{server.URL}}))
	require.EqualValues(t, 2, n.Load())
}

// busy is a transport to a daemon that is busy.
type busy struct{}

func (busy) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	write(w, http.StatusServiceUnavailable, api.Error{Error: "busy"})
	return w.Result(), nil
}

func TestBusyForEver(t *testing.T) {
	for _, timeout := range []time.Duration{100 * time.Millisecond, enough} {
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Options{URLs: []string{"http://daemon"}, Timeout: timeout})
			require.NoError(t, err)
			c.http.Transport = busy{}
			start := time.Now()
			c.Each(t.Context(), func(ctx context.Context, _ int, d Daemon) {
				_, err := d.Status(ctx)
				require.EqualError(t, err, "answers 503 Service Unavailable: busy")
			})
			require.Equal(t, min(timeout, (1+busyRetries)*busyPause), time.Since(start))
		})
	}
}

func TestAskEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	c, err := New(Options{URLs: []string{"http://" + l.Addr().String()}, Timeout: enough})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Each(ctx, func(ctx context.Context, _ int, d Daemon) {
		_, err := d.Status(ctx)
		require.ErrorContains(t, err, "context canceled")
	})
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
			require.ErrorContains(t, ask(t, Options{URLs: []string{server.URL}}), c.names)
		})
	}
}
