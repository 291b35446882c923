package check

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
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
	c, err := client.New(client.Options{URLs: urls, Timeout: timeout})
	require.NoError(t, err)
	return Ask(t.Context(), c, rules)
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
	require.Equal(t, []string{"GET /api/v1/status", "GET /api/v1/locks?limit=200&state=overdue%2Cexpired",
		"GET /api/v1/locks?limit=200&state=undated%2Cmalformed", "GET /api/v1/forced-unlocks?limit=500"}, f.asked())
}

func TestAskNoMoreThanNeeded(t *testing.T) {
	f := newFake(t, answer())
	require.NoError(t, ask(t, Rules{}, enough, f.URL)[0].Err)
	require.Equal(t, []string{"GET /api/v1/status"}, f.asked())
}

func TestAskForOneLock(t *testing.T) {
	f := newFake(t, answer(only(&api.Lock{Name: "a/b", State: held})))
	a := ask(t, Rules{Lock: "a/b"}, enough, f.URL)[0]
	require.NoError(t, a.Err)
	require.Equal(t, "a/b", a.Lock.Name)
	require.Equal(t, []string{"GET /api/v1/status", "GET /api/v1/locks/a%2Fb"}, f.asked())

	a = ask(t, Rules{Lock: "a"}, enough, newFake(t, answer()).URL)[0]
	require.NoError(t, a.Err)
	require.Nil(t, a.Lock)
}

// Whatever a program in its place answers.
func TestBrokenDaemonIsCritical(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(w, http.StatusInternalServerError, api.Error{Error: "|a=1 $(reboot)\nUNLOCKER OK"})
	}))
	defer server.Close()
	r := Judge(byDefault(t), ask(t, byDefault(t), enough, server.URL))
	require.Equal(t, Critical, r.State)
	require.Contains(t, r.String(), "answers 500 Internal Server Error: a=1 (reboot) UNLOCKER OK")
	requireSound(t, r.String())
}

// One that is slow takes no time from the others.
func TestSilentDaemonIsAWarning(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, says nothing
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	const timeout = 5 * time.Second // enough for the other one on a busy machine
	answers := ask(t, Rules{}, timeout, "http://"+l.Addr().String(), newFake(t, answer()).URL)
	require.EqualError(t, answers[0].Err, "does not answer within 5s")
	require.NoError(t, answers[1].Err)
	require.Equal(t, Warning, Judge(byDefault(t), answers).State)
}

// A single lock is read from etcd, which takes long if etcd cannot be reached.
func TestBlindDaemonIsNotAskedForALock(t *testing.T) {
	f := newFake(t, answer(cutOff))
	require.NoError(t, ask(t, Rules{Lock: "a"}, enough, f.URL)[0].Err)
	require.Equal(t, []string{"GET /api/v1/status"}, f.asked())
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
