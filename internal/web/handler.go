package web

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	pathpkg "path"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// Query selects the locks of a page.
type Query struct {
	// States are the names of the states to include; empty means all.
	States []string
	// Contains is a part of the name, Hostname the whole name of the host; empty means
	// any.
	Contains, Hostname string
	// After is the name after which the page begins, Limit its maximum size.
	After string
	Limit int
}

// Source has the data that the API answers. It is called concurrently.
type Source interface {
	// Locks returns a page, and the name of its last lock if there are more locks.
	Locks(ctx context.Context, q Query) (page []api.Lock, last string, err error)
	// Lock reads a lock from etcd. The error is ErrNoLock if there is no such lock.
	Lock(ctx context.Context, name string) (api.LockDetail, error)
	// Forced returns at most limit of the recent forced unlocks, newest first: of the lock
	// with this name, or of all locks if it is empty.
	Forced(name string, limit int) []api.Forced
	// Status returns the status of the daemon.
	Status(ctx context.Context) (api.Status, error)
}

// ErrNoLock is the error for a lock that does not exist.
var ErrNoLock = errors.New("no such lock")

// Options configure the handler.
type Options struct {
	Source Source
	// PathPrefix is the path under which the handler is served: empty, or a path that
	// begins with a slash and does not end with one.
	PathPrefix string
	Logger     *slog.Logger
}

// maxInFlight bounds the number of requests in flight, requestTimeout the time of each.
const (
	maxInFlight    = 8
	requestTimeout = 10 * time.Second
)

// handler answers requests.
type handler struct {
	Options
	mux    *http.ServeMux
	single getter
	slots  chan struct{}
}

// getter returns the value to answer as JSON.
type getter func(*http.Request) (any, error)

// inTurn serves n requests at a time; the others wait.
func inTurn(n int, get getter) getter {
	turns := make(chan struct{}, n)
	return func(r *http.Request) (any, error) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			return get(r)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

// New validates the options and returns the handler of all paths under PathPrefix.
func New(o Options) (http.Handler, error) {
	if o.Source == nil || o.Logger == nil {
		return nil, errors.New("web: Source and Logger are required")
	}
	h := &handler{Options: o, mux: http.NewServeMux(), slots: make(chan struct{}, maxInFlight)}
	// A page blocks the table; the other answers may take megabytes.
	h.single = inTurn(2, h.lock)
	h.mux.HandleFunc("/api/v1/locks", h.answer(inTurn(1, h.locks)))
	h.mux.HandleFunc("/api/v1/forced-unlocks", h.answer(inTurn(2, h.forced)))
	h.mux.HandleFunc("/api/v1/status", h.answer(h.status))
	h.mux.HandleFunc("/", h.answer(func(*http.Request) (any, error) { return nil, notFound() }))
	return h, nil
}

// Paths of single locks. Their names may contain what a ServeMux would normalize.
const (
	apiLock  = "/api/v1/locks/"
	pageLock = "/locks/"
)

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), h.PathPrefix)
	switch {
	case !ok, path != "" && path[0] != '/':
		h.fail(w, r, notFound())
	case strings.HasPrefix(path, apiLock):
		h.answer(h.single)(w, r)
	case strings.HasPrefix(path, pageLock):
		// The path in the links of alerts.
		redirect(w, h.PathPrefix+apiLock+path[len(pageLock):])
	case path == "" || path == "/":
		redirect(w, h.PathPrefix+"/api/v1/status")
	case pathpkg.Clean(path) != path:
		h.fail(w, r, notFound()) // a ServeMux would redirect outside of PathPrefix
	default:
		http.StripPrefix(h.PathPrefix, h.mux).ServeHTTP(w, r)
	}
}

// redirect answers with a redirect to a path of this handler.
func redirect(w http.ResponseWriter, path string) {
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// secure sets headers that keep browsers from caching, framing or executing an answer.
func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}

// answer returns the handler that answers with the value of a getter.
func (h *handler) answer(get getter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			h.fail(w, r, &statusError{http.StatusMethodNotAllowed, "the API is read-only: only GET and HEAD are allowed"})
			return
		}
		select {
		case h.slots <- struct{}{}:
			defer func() { <-h.slots }()
		default:
			w.Header().Set("Retry-After", "1")
			h.fail(w, r, &statusError{http.StatusServiceUnavailable, "too many requests in flight, try again"})
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		body, err := get(r.WithContext(ctx))
		if err != nil {
			h.fail(w, r, err)
			return
		}
		h.send(w, http.StatusOK, body)
	}
}

func (h *handler) send(w http.ResponseWriter, status int, answer any) {
	body, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		h.Logger.Error("cannot encode an answer", "error", err)
		status, body = http.StatusInternalServerError, []byte(`{"error": "cannot encode the answer"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// The answer is often printed on a terminal, by curl. An error means that the client
	// has gone.
	_, _ = w.Write(append(terminal.EscapeJSON(body), '\n'))
}
