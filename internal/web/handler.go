// Package web serves the API and the pages of the dashboard: the locks, one lock with all its
// fields and its history, the recent forced unlocks, native locks, the status of the daemon, a
// stream of changes, and the manual unlock, if that is allowed.
//
// Guaranteed: only assets, whose paths have their hashes, are ever cached, and responses are sent
// with their type and nosniff. An error has the right status, in JSON or as a page. Few requests are
// served at a time, because a page of locks scans the table, which removals need too. Not
// guaranteed: authentication, which is up to the configuration of the listener; an unlock needs a
// user. Only unlocks, pauses and questions to holders change anything.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	pathpkg "path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/web/live"
	"github.com/etcd-unlocker/unlocker/internal/web/page"
)

// Source has the data that the API answers. It is called concurrently.
type Source interface {
	// Locks returns a page. The error is api.ErrAfter if there is no such position.
	Locks(ctx context.Context, q api.Query) (api.LockPage, error)
	// Lock reads a lock from etcd. The error is ErrNoLock if there is no such lock. With any other
	// error the lock is as the watch showed it last, without fields, or empty if it did not.
	Lock(ctx context.Context, name string) (api.LockDetail, error)
	// Forced returns at most limit of the recent forced unlocks, newest first: of the lock
	// with this name, or of all locks if it is empty.
	Forced(name string, limit int) []api.Forced
	// History reads from the old revisions of etcd who held a lock. The error is ErrBusy where too
	// many ask for that.
	History(ctx context.Context, name string) (api.History, error)
	// Native returns the locks and elections below the native prefixes. It may return the same
	// value several times, which must not be changed.
	Native(ctx context.Context) (api.NativeList, error)
	// Waiters returns the waiters of a lock, the first of them up to a limit.
	Waiters(name string, limit int) api.WaiterList
	// Deadlocks returns the first deadlocks among waiters.
	Deadlocks() api.DeadlockList
	// Status returns the status of the daemon.
	Status(ctx context.Context) (api.Status, error)
}

// ErrNoLock is the error for a lock that does not exist, ErrBusy for what too many ask for.
var (
	ErrNoLock = failure(http.StatusNotFound, "no such lock")
	ErrBusy   = failure(http.StatusServiceUnavailable, "too many requests of this kind, try again")
)

// Options configure the handler.
type Options struct {
	Source Source
	// Unlocker is nil if no lock may be removed by the API.
	Unlocker Unlocker
	// Events serves the event streams.
	Events *live.Hub
	// PathPrefix is the path under which the handler is served: empty, or a path that
	// begins with a slash and does not end with one.
	PathPrefix string
	Logger     *slog.Logger
}

// maxInFlight, maxUnlocks and maxAsks bound the number of requests in flight, requestTimeout the time of each.
// Up to maxQueued further ones wait, each for at most maxWait: people who poll a page do so at once.
const (
	maxInFlight    = 8
	maxUnlocks     = 4
	maxAsks        = 16 // each waits for a holder
	maxQueued      = 256
	maxWait        = 2 * time.Second
	requestTimeout = 10 * time.Second
)

type handler struct {
	Options
	mux     *http.ServeMux
	pages   *page.Pages
	encoder chan struct{}    // a semaphore of one: to encode an answer takes several times its memory
	single  http.HandlerFunc // /api/v1/locks/NAME
	shown   http.HandlerFunc // /locks/NAME
	unlocks http.HandlerFunc // POST /api/v1/locks/NAME/unlock
	asks    http.HandlerFunc // POST /api/v1/locks/NAME/ask
	origin  http.CrossOriginProtection
	// slots are for what reads. Unlocks have their own, and one of them removes a lock at a time. many is for the one that
	// removes many.
	slots, unlockSlots, turn, queue, many *semaphore.Weighted
}

// getter returns the value to answer, by the parameters in the query.
type getter func(*http.Request, url.Values) (any, error)

// sender sends the value of a getter, or an api.Error.
type sender func(w http.ResponseWriter, r *http.Request, status int, answer any)

// always returns the getter of what depends on nothing in the request.
func always[T any](value func(context.Context) (T, error)) getter {
	return func(r *http.Request, _ url.Values) (any, error) { return value(r.Context()) }
}

// inTurn serves as many requests at a time as turns has places; the others wait.
func inTurn(turns *semaphore.Weighted, get getter) getter {
	return func(r *http.Request, values url.Values) (any, error) {
		if err := turns.Acquire(r.Context(), 1); err != nil {
			return nil, err
		}
		defer turns.Release(1)
		return get(r, values)
	}
}

// New validates the options and returns the handler of all paths under PathPrefix.
func New(o Options) (http.Handler, error) {
	if o.Source == nil || o.Events == nil || o.Logger == nil {
		return nil, errors.New("web: Source, Events and Logger are required")
	}
	h := &handler{Options: o, mux: http.NewServeMux(), pages: page.New(o.PathPrefix, o.Unlocker != nil), slots: semaphore.NewWeighted(maxInFlight),
		queue: semaphore.NewWeighted(maxQueued), unlockSlots: semaphore.NewWeighted(maxUnlocks), turn: semaphore.NewWeighted(1), many: semaphore.NewWeighted(1),
		encoder: make(chan struct{}, 1)}
	// A page of locks blocks the table; the other answers may take megabytes.
	list, single, forced := semaphore.NewWeighted(1), semaphore.NewWeighted(2), semaphore.NewWeighted(2)
	h.single = h.answer(h.send, inTurn(single, h.lock))
	h.unlocks = h.respond(h.unlockSlots, h.send, h.unlock)
	h.asks = h.respond(semaphore.NewWeighted(maxAsks), h.send, h.ask)
	h.shown = h.answer(h.sendPage, inTurn(single, h.lockPage), liveParam)
	h.mux.HandleFunc("/api/v1/locks", h.answer(h.send, inTurn(list, h.locks), "state", "q", "hostname", "owner", "silent", "sort", "limit", "after"))
	h.mux.HandleFunc("/api/v1/forced-unlocks", h.answer(h.send, inTurn(forced, h.forced), "name", "limit"))
	h.mux.HandleFunc("/api/v1/history", h.answer(h.send, h.history, "name"))
	h.mux.HandleFunc("/api/v1/waiters", h.answer(h.send, inTurn(forced, h.waiters), "name", "limit"))
	h.mux.HandleFunc("/api/v1/deadlocks", h.answer(h.send, func(*http.Request, url.Values) (any, error) { return h.Source.Deadlocks(), nil }))
	h.mux.HandleFunc("/api/v1/native", h.answer(h.send, inTurn(forced, always(h.Source.Native))))
	h.mux.HandleFunc("/api/v1/status", h.answer(h.send, always(h.Source.Status)))
	h.mux.HandleFunc("/api/v1/pauses", func(w http.ResponseWriter, r *http.Request) {
		h.allowed(w, r, h.send, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodPost)
	})
	h.mux.HandleFunc("GET /api/v1/pauses", h.answer(h.send, always(h.pauses)))
	h.mux.HandleFunc("POST /api/v1/pauses", h.respond(h.unlockSlots, h.send, h.pause))
	h.mux.HandleFunc("DELETE /api/v1/pauses", h.respond(h.unlockSlots, h.send, h.resume, "match", "all"))
	h.mux.HandleFunc("/api/v1/unlock", h.unlockMany)
	h.mux.HandleFunc("/api/v1/events", h.events(live.JSON()))
	h.mux.HandleFunc("/events", h.events(live.Format{Name: "html", Encode: func(q api.Query, window api.LockPage, e api.Event) ([]byte, error) {
		return h.pages.Event(q, window, e, time.Now())
	}}))
	h.mux.HandleFunc("/api/v1/openapi.yaml", h.answer(h.sendYAML, func(*http.Request, url.Values) (any, error) { return document, nil }))
	h.mux.HandleFunc("/{$}", h.answer(h.sendPage, inTurn(list, h.dashboard), "state", "q", "hostname", "owner", "silent", "limit", "after", "group"))
	h.mux.HandleFunc("/forced", h.answer(h.sendPage, inTurn(forced, h.forcedPage), "name", "limit", liveParam))
	h.mux.HandleFunc("/native", h.answer(h.sendPage, inTurn(forced, always(h.nativePage)), liveParam))
	if o.Unlocker != nil {
		h.mux.HandleFunc("/actions", h.answer(h.sendPage, h.actionsPage, "match", liveParam))
	}
	h.mux.HandleFunc("/health", h.answer(h.sendPage, always(h.healthPage), liveParam))
	h.mux.HandleFunc("/assets/{hash}/{file}", func(w http.ResponseWriter, r *http.Request) { // without a slot: they are in memory
		if !h.pages.Asset(w, r, r.PathValue("hash"), r.PathValue("file")) {
			h.fail(w, r, h.send, notFound())
		}
	})
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if h.readOnly(w, r, h.send) {
			h.fail(w, r, h.send, notFound())
		}
	})
	return h, nil
}

// Paths of single locks. Their names may contain what a ServeMux would normalize.
const (
	apiLock  = "/api/v1/locks/"
	pageLock = "/locks/"
)

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	path, ok := strings.CutPrefix(r.URL.EscapedPath(), h.PathPrefix)
	switch {
	case !ok, path != "" && path[0] != '/':
		h.fail(w, r, h.send, notFound())
	case strings.HasPrefix(path, apiLock) && r.Method == http.MethodPost && strings.HasSuffix(path[len(apiLock):], verb):
		h.unlocks(w, r)
	case strings.HasPrefix(path, apiLock) && r.Method == http.MethodPost && strings.HasSuffix(path[len(apiLock):], askVerb):
		h.asks(w, r)
	case strings.HasPrefix(path, apiLock):
		h.single(w, r)
	case strings.HasPrefix(path, pageLock):
		h.shown(w, r)
	case path == "":
		w.Header().Set("Location", h.PathPrefix+"/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case pathpkg.Clean(path) != path:
		h.fail(w, r, h.send, notFound()) // a ServeMux would redirect outside of PathPrefix
	default:
		http.StripPrefix(h.PathPrefix, h.mux).ServeHTTP(w, r)
	}
}

// secure sets headers that keep browsers from caching, framing or executing an answer.
func secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
}

// answer returns the handler that sends the value of a getter, which takes these parameters.
func (h *handler) answer(send sender, get getter, parameters ...string) http.HandlerFunc {
	serve := h.respond(h.slots, send, get, parameters...)
	return func(w http.ResponseWriter, r *http.Request) {
		if h.readOnly(w, r, send) {
			serve(w, r)
		}
	}
}

// enter takes one of the slots, and reports whether one was free within maxWait.
func (h *handler) enter(ctx context.Context, slots *semaphore.Weighted) bool {
	if slots.TryAcquire(1) {
		return true
	}
	if !h.queue.TryAcquire(1) {
		return false
	}
	defer h.queue.Release(1)
	limited, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	return slots.Acquire(limited, 1) == nil
}

// respond returns the handler that answers with the value of a getter, in one of few slots and within
// the timeout.
func (h *handler) respond(slots *semaphore.Weighted, send sender, get getter, parameters ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !h.enter(r.Context(), slots) {
			h.fail(w, r, send, failure(http.StatusServiceUnavailable, "too many requests in flight, try again"))
			return
		}
		defer slots.Release(1)
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		var body any
		values, err := known(r, parameters...)
		if err == nil {
			body, err = get(r.WithContext(ctx), values)
		}
		if err != nil {
			h.fail(w, r, send, err)
			return
		}
		send(w, r, http.StatusOK, body)
	}
}

func (h *handler) readOnly(w http.ResponseWriter, r *http.Request, send sender) bool {
	return h.allowed(w, r, send, http.MethodGet, http.MethodHead)
}

// allowed reports whether a request has one of the methods, and refuses it otherwise.
func (h *handler) allowed(w http.ResponseWriter, r *http.Request, send sender, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	list := strings.Join(methods, ", ")
	w.Header().Set("Allow", list)
	h.fail(w, r, send, failure(http.StatusMethodNotAllowed, "allowed here: "+list))
	return false
}

func (h *handler) send(w http.ResponseWriter, _ *http.Request, status int, answer any) {
	body, err := h.encode(func() ([]byte, error) {
		body, err := json.MarshalIndent(answer, "", "  ")
		// The answer is often printed on a terminal, by curl.
		return append(terminal.EscapeJSON(body), '\n'), err
	})
	if err != nil {
		h.Logger.Error("cannot encode an answer", "error", err)
		status, body = http.StatusInternalServerError, []byte(`{"error": "cannot encode the answer"}`+"\n")
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}

// encode encodes one answer at a time.
func (h *handler) encode(f func() ([]byte, error)) ([]byte, error) {
	h.encoder <- struct{}{}
	defer func() { <-h.encoder }()
	return f()
}
