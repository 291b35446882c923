package web

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/web/live"
	"github.com/etcd-unlocker/unlocker/internal/web/page"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// maxLimit is the maximum number of locks on a page.
const maxLimit = 1000

func (h *handler) locks(r *http.Request, values url.Values) (any, error) {
	q, err := query(values)
	if err != nil {
		return nil, err
	}
	return h.list(r, q)
}

func (h *handler) list(r *http.Request, q api.Query) (api.LockPage, error) {
	found, err := h.Source.Locks(r.Context(), q)
	if errors.Is(err, api.ErrAfter) {
		err = badRequest(fmt.Sprintf("after: %q is %v", clip(q.After), err))
	}
	return found, err
}

// events returns the handler that sends streams in a format. They take no slot of the other requests:
// the hub has bounds of its own.
func (h *handler) events(f live.Format) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !h.readOnly(w, r, h.send) {
			return
		}
		var q api.Query
		values, err := known(r, "state", "q", "hostname", "owner", "silent", "limit")
		if err == nil {
			q, err = query(values)
		}
		if err != nil {
			h.fail(w, r, h.send, err)
			return
		}
		if r.Method == http.MethodHead {
			live.Headers(w.Header())
			return
		}
		q.ByUrgency = true
		if err := h.Events.Serve(w, r, q, f); err != nil {
			h.fail(w, r, h.send, failure(http.StatusServiceUnavailable, err.Error()))
		}
	}
}

func query(values url.Values) (q api.Query, err error) {
	q = api.Query{Contains: values.Get("q"), Hostname: values.Get("hostname"), Owner: values.Get("owner"), Silent: values.Get("silent") == "true", After: values.Get("after")}
	if q.Limit, err = limit(values); err != nil {
		return q, err
	}
	if silent := values.Get("silent"); silent != "" && !q.Silent {
		return q, badRequest(fmt.Sprintf("silent: must be true or left out, not %q", clip(silent)))
	}
	switch sort := values.Get("sort"); sort {
	case "", "name":
	case "urgency":
		q.ByUrgency = true
	default:
		return q, badRequest(fmt.Sprintf("sort: unknown order %q: want name, urgency", clip(sort)))
	}
	for _, list := range values["state"] {
		for state := range strings.SplitSeq(list, ",") {
			if state = strings.TrimSpace(state); state == "" {
				continue
			}
			if !slices.Contains(api.States(), state) {
				return q, badRequest(fmt.Sprintf("state: unknown state %q: want %s", clip(state), strings.Join(api.States(), ", ")))
			}
			q.States = append(q.States, state)
		}
	}
	return q, nil
}

// known refuses unknown parameters, since a misspelled filter would show too much.
func known(r *http.Request, names ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("malformed query string")
	}
	for name := range values {
		if !slices.Contains(names, name) {
			return nil, badRequest(fmt.Sprintf("unknown parameter %q: want %s", clip(name), cmp.Or(strings.Join(names, ", "), "none")))
		}
	}
	return values, nil
}

func limit(values url.Values) (int, error) {
	text := values.Get("limit")
	if text == "" {
		return page.DefaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, badRequest(fmt.Sprintf("limit: must be 1 to %d, not %q", maxLimit, clip(text)))
	}
	return n, nil
}

// lock answers with the lock whose name follows the path, with plain or escaped slashes.
func (h *handler) lock(r *http.Request, _ url.Values) (any, error) {
	name, err := h.name(r, apiLock)
	if err != nil {
		return nil, err
	}
	return h.Source.Lock(r.Context(), name)
}

func (h *handler) forced(_ *http.Request, values url.Values) (any, error) {
	n, err := limit(values)
	return api.ForcedList{Forced: h.Source.Forced(values.Get("name"), n)}, err
}

func (h *handler) history(r *http.Request, values url.Values) (any, error) {
	if err := validName(values); err != nil {
		return nil, err
	}
	return h.Source.History(r.Context(), values.Get("name"))
}

func validName(values url.Values) error {
	if err := protocol.ValidateName(values.Get("name")); err != nil {
		return badRequest("name: " + err.Error())
	}
	return nil
}

func (h *handler) waiters(_ *http.Request, values url.Values) (any, error) {
	n, err := limit(values)
	if err == nil {
		err = validName(values)
	}
	return h.Source.Waiters(values.Get("name"), n), err
}

// clip bounds what an answer or a log line quotes of a request.
func clip(text string) string { return protocol.Clip([]byte(text), 200) }

func errorBody(err error) api.Error {
	return api.Error{Error: protocol.Clip([]byte(err.Error()), 1000)}
}

// document describes the API. Tests compare it with the types, the paths and real answers.
//
//go:embed openapi.yaml
var document []byte

// sendYAML answers with a document, or with an error in JSON.
func (h *handler) sendYAML(w http.ResponseWriter, r *http.Request, status int, answer any) {
	if text, ok := answer.([]byte); ok {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(text)
		return
	}
	h.send(w, r, status, answer)
}

// Error is an error with the HTTP status of its answer. The text of Err is the answer.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

func failure(status int, words string) error { return &Error{status, errors.New(words)} }

func badRequest(words string) error { return failure(http.StatusBadRequest, words) }

func notFound() error {
	return failure(http.StatusNotFound, "no such path: /api/v1/openapi.yaml has those of the API")
}

// fail answers with an error. Failures of etcd are logged and are part of the answer: the
// API is for those who look for the cause.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, send sender, err error) {
	status := http.StatusBadGateway
	var known *Error
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return // the client has gone
	case errors.As(err, &known):
		status = known.Status
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if status == http.StatusBadGateway || status == http.StatusGatewayTimeout {
		h.Logger.Warn("request failed", "path", clip(r.URL.EscapedPath()), "status", status, "error", errorBody(err).Error)
	}
	send(w, r, status, errorBody(err))
}
