package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/web/page"
)

func TestPages(t *testing.T) {
	for path, want := range map[string]string{
		"/":            `href="/p/locks/%3Cb%3E`,
		"/locks/a/b":   "<h1><bdi>a/b</bdi></h1>",
		"/locks/a%2Fb": "<h1><bdi>a/b</bdi></h1>",
		"/forced":      `href="/p/locks/a"`,
		"/health":      "<h1>Health</h1>",
	} {
		server, _ := newServer(t, &source{}, "/p")
		resp, body := get(t, "GET", server.URL+"/p"+path)
		require.Equal(t, http.StatusOK, resp.status, body)
		require.Contains(t, body, want)
		require.Equal(t, "text/html; charset=utf-8", resp.header.Get("Content-Type"))
		require.Equal(t, page.Policy, resp.header.Get("Content-Security-Policy"))
		require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
		require.NotContains(t, body, "<b>\x1b")
		require.NotContains(t, body, "\u202e")
		for _, asset := range regexp.MustCompile(`(?:src|href)="(/p/assets/[^"]+)"`).FindAllStringSubmatch(body, -1) {
			resp, _ := get(t, "GET", server.URL+asset[1])
			require.Equal(t, http.StatusOK, resp.status, asset[1])
			require.Contains(t, resp.header.Get("Cache-Control"), "immutable")
		}
	}
}

// An error is a page, too, for those who follow a link of an alert.
func TestErrorsOfPages(t *testing.T) {
	server, _ := newServer(t, &source{err: ErrNoLock}, "")
	resp, body := get(t, "GET", server.URL+"/locks/a")
	require.Equal(t, http.StatusNotFound, resp.status)
	require.Equal(t, "text/html; charset=utf-8", resp.header.Get("Content-Type"))
	require.Contains(t, body, "<h1><bdi>a</bdi>: no such lock</h1>")
	require.NotContains(t, body, "http-equiv")
	resp, _ = get(t, "POST", server.URL+"/")
	require.Equal(t, http.StatusMethodNotAllowed, resp.status)
}

// A page that is refused because of too many requests names its lock, and tries again without scripts.
func TestPageTriesAgain(t *testing.T) {
	server, _ := newServer(t, &source{err: ErrBusy}, "/p")
	resp, body := get(t, "GET", server.URL+"/p/locks/a%2F%3Cb%3E")
	require.Equal(t, http.StatusServiceUnavailable, resp.status)
	require.Contains(t, body, "<title>503 a/&lt;b&gt; · unlocker</title>")
	require.Contains(t, body, "<h1><bdi>a/&lt;b&gt;</bdi>: too many requests of this kind, try again</h1>")
	require.Contains(t, body, `<meta http-equiv="refresh" content="2">`)
	require.Contains(t, body, "The page tries again every two seconds.")
}

// A replica of another version is asked for assets of this one during an upgrade.
func TestAssets(t *testing.T) {
	server, _ := newServer(t, &source{}, "")
	resp, _ := get(t, "GET", server.URL+"/assets/other/style.css")
	require.Equal(t, http.StatusOK, resp.status)
	require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
	require.Equal(t, "text/css; charset=utf-8", resp.header.Get("Content-Type"))
	resp, _ = get(t, "GET", server.URL+"/assets/other/none.css")
	require.Equal(t, http.StatusNotFound, resp.status)
}

// lockSource is a source of one lock, or of none. Then history waits until it is canceled.
type lockSource struct {
	source
	lock      *api.LockDetail
	err       error
	forced    []api.Forced
	history   *api.History
	histories int
}

func (k *lockSource) Lock(context.Context, string) (api.LockDetail, error) {
	if k.lock == nil {
		return api.LockDetail{}, k.err
	}
	return *k.lock, k.err
}

func (k *lockSource) Forced(string, int) []api.Forced { return k.forced }

func (k *lockSource) History(ctx context.Context, _ string) (api.History, error) {
	k.histories++
	if k.history == nil {
		<-ctx.Done()
		return api.History{}, ctx.Err()
	}
	return *k.history, nil
}

func showLock(t *testing.T, k *lockSource, path string) (status int, body string) {
	t.Helper()
	server, _ := newServer(t, k, "")
	resp, body := get(t, "GET", server.URL+path)
	return resp.status, body
}

func TestPageOfALock(t *testing.T) {
	k := &lockSource{
		lock: &api.LockDetail{
			Lock:    api.Lock{Name: "a/b", State: "held", Token: 7, UUID: "u'", Owner: "billing", Explanation: "is removed at 10:00:00", Due: time.Now().Add(time.Hour)},
			Fields:  []api.Field{{Name: "backtrace", Value: "main.go:1\nmain.go:2"}},
			Verdict: &verdict.Verdict{Trigger: verdict.Expiry, Remaining: time.Hour},
		},
		history: &api.History{FromRevision: 5, Compacted: true},
	}
	status, body := showLock(t, k, "/locks/a/b")
	require.Equal(t, http.StatusOK, status)
	for _, want := range []string{
		`</span> Unless its holder renews or releases it, due <time`, `The lock is removed at <time datetime="`, `T10:00:00.000Z" data-zone="clock">10:00:00</time>.`, "main.go:1\nmain.go:2</pre>",
		"unlocker unlock a/b --uuid=&#39;u&#39;\\&#39;&#39;&#39;", "etcd has removed all revisions before 5", `data-version="7-0-false-false-u&#39;"`,
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, `id="unlock"`, "web.allow_unlock is off")
	_, body = showLock(t, k, "/locks/a/b?live=1")
	require.Equal(t, 1, k.histories, "it asks for itself again without the history")
	require.Contains(t, body, `data-version="7-0-false-false-u&#39;"`)
}

func TestPageOfALockThatIsGone(t *testing.T) {
	k := &lockSource{err: ErrNoLock, history: &api.History{Periods: []api.Period{{Hostname: "worker-1", Ended: &api.Ended{How: api.EndManual, Who: "ada@laptop", Reason: "OPS-1"}}}}}
	status, body := showLock(t, k, "/locks/a")
	require.Equal(t, http.StatusNotFound, status)
	for _, want := range []string{"There is no such lock now.", "Then it was unlocked manually (<bdi>ada@laptop</bdi>): <bdi>OPS-1</bdi>.", "no record of a forced unlock of it"} {
		require.Contains(t, body, want)
	}
	k.forced = []api.Forced{{At: time.Unix(1, 0), Trigger: "expiry", By: api.Self, Fields: []api.Field{{Name: "purpose", Value: "close November"}}}}
	_, body = showLock(t, k, "/locks/a")
	require.Contains(t, body, "close November")
	require.NotContains(t, body, "no record of a forced unlock of it")
	require.NotContains(t, body, "Remove it by hand")
}

// Whoever follows the link of an alert while etcd is down finds what the daemon knows.
func TestPageOfALockThatCannotBeRead(t *testing.T) {
	k := &lockSource{err: errors.New("etcd is down"), lock: &api.LockDetail{Lock: api.Lock{Name: "a", Token: 3, State: "overdue", Hostname: "worker-1"}, Verdict: &verdict.Verdict{}}}
	status, body := showLock(t, k, "/locks/a")
	require.Equal(t, http.StatusOK, status)
	for _, want := range []string{"This is what the watch showed last", "etcd is down", "worker-1"} {
		require.Contains(t, body, want)
	}
	require.Zero(t, k.histories)
	k.lock = nil
	status, body = showLock(t, k, "/locks/a")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "Whether there is such a lock is not known now.")
	require.NotContains(t, body, "There is no such lock")
}

func TestPageDoesNotWaitForALongHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &lockSource{lock: &api.LockDetail{Lock: api.Lock{Name: "a"}, Verdict: &verdict.Verdict{}}}
		h, err := New(Options{Source: k, Events: stoppedHub(t), Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		start, w := time.Now(), httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/locks/a", nil))
		require.Equal(t, historyTimeout, time.Since(start))
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), "The history could not be read: context deadline exceeded. Load the page again")
	})
}

// slowly takes a second to be encoded.
type slowly struct{}

func (slowly) MarshalJSON() ([]byte, error) {
	<-time.After(time.Second)
	return []byte(`"\u003c"`), nil
}

// Answers are encoded one after the other, since each takes memory.
func TestAnswersAreEncodedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served, err := New(Options{Source: &source{}, Events: stoppedHub(t), Logger: (&etcdtest.Log{}).Logger()})
		require.NoError(t, err)
		start := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				w := httptest.NewRecorder()
				served.(*handler).send(w, nil, http.StatusOK, slowly{})
				require.Equal(t, `"\u003c"`+"\n", w.Body.String())
			})
		}
		all.Wait()
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}
