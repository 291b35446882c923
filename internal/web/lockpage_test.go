package web

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// lockSource is a source of one lock. Where there is no lock, history waits until it is canceled.
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
			Lock:    api.Lock{Name: "a/b", State: "held", Token: 7, UUID: "u'", Owner: "billing", Explanation: "is removed at 10:00:00"},
			Fields:  []api.Field{{Name: "backtrace", Value: "main.go:1\nmain.go:2"}},
			Verdict: &verdict.Verdict{Trigger: verdict.Expiry, Remaining: time.Hour},
		},
		history: &api.History{FromRevision: 5, Compacted: true},
	}
	status, body := showLock(t, k, "/locks/a/b")
	require.Equal(t, http.StatusOK, status)
	for _, want := range []string{
		"Will be removed", "unless its holder renews it.", "The lock is removed at 10:00:00 UTC.", "main.go:1\nmain.go:2</pre>",
		"unlocker unlock a/b --uuid=&#39;u&#39;\\&#39;&#39;&#39;", "etcd has removed all revisions before 5", `data-version="7-0-false-u&#39;"`,
	} {
		require.Contains(t, body, want)
	}
	require.NotContains(t, body, `id="unlock"`, "web.allow_unlock is off")
	_, body = showLock(t, k, "/locks/a/b?live=1")
	require.Equal(t, 1, k.histories, "it asks for itself again without the history")
	require.Contains(t, body, `data-version="7-0-false-u&#39;"`)
}

func TestPageOfALockThatIsGone(t *testing.T) {
	k := &lockSource{err: ErrNoLock, history: &api.History{Periods: []api.Period{{Hostname: "worker-1", Ended: &api.Ended{How: api.EndManual, Who: "ada@laptop", Reason: "OPS-1"}}}}}
	status, body := showLock(t, k, "/locks/a")
	require.Equal(t, http.StatusNotFound, status)
	for _, want := range []string{"There is no such lock now.", "Then it was unlocked by a person (<bdi>ada@laptop</bdi>): <bdi>OPS-1</bdi>.", "knows of no forced unlock of it"} {
		require.Contains(t, body, want)
	}
	k.forced = []api.Forced{{At: time.Unix(1, 0), Trigger: "expiry", By: api.Self, Fields: []api.Field{{Name: "purpose", Value: "close November"}}}}
	_, body = showLock(t, k, "/locks/a")
	require.Contains(t, body, "close November")
	require.NotContains(t, body, "knows of no forced unlock of it")
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
