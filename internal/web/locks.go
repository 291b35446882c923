package web

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Limits of a page.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

func (h *handler) locks(r *http.Request) (any, error) {
	q, err := query(r)
	if err != nil {
		return nil, err
	}
	locks, last, err := h.Source.Locks(r.Context(), q)
	if err != nil {
		return nil, err
	}
	page := api.LockPage{Locks: locks}
	if last != "" {
		// A name may contain bytes that are invalid in JSON.
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(last))
	}
	return page, nil
}

// query parses state, q, hostname, limit and after. It refuses unknown parameters, since a
// misspelled filter would show too much.
func query(r *http.Request) (Query, error) {
	values, err := known(r, "state", "q", "hostname", "limit", "after")
	if err != nil {
		return Query{}, err
	}
	q := Query{Contains: values.Get("q"), Hostname: values.Get("hostname")}
	if q.Limit, err = limit(values); err != nil {
		return Query{}, err
	}
	after, err := base64.RawURLEncoding.DecodeString(values.Get("after"))
	if err != nil {
		return Query{}, badRequest(fmt.Sprintf("after: %q is not the value of a next", clip(values.Get("after"))))
	}
	q.After = string(after)
	for _, list := range values["state"] {
		for state := range strings.SplitSeq(list, ",") {
			if state = strings.TrimSpace(state); state == "" {
				continue
			}
			if !slices.Contains(api.States(), state) {
				return Query{}, badRequest(fmt.Sprintf("state: unknown state %q: want %s", clip(state), strings.Join(api.States(), ", ")))
			}
			q.States = append(q.States, state)
		}
	}
	return q, nil
}

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
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, badRequest(fmt.Sprintf("limit: must be 1 to %d, not %q", maxLimit, clip(text)))
	}
	return n, nil
}

// lock answers with the lock whose name follows the path, with plain or escaped slashes.
func (h *handler) lock(r *http.Request) (any, error) {
	if _, err := known(r); err != nil {
		return nil, err
	}
	escaped := strings.TrimPrefix(r.URL.EscapedPath(), h.PathPrefix+apiLock)
	name, err := url.PathUnescape(escaped)
	if err == nil {
		err = lock.ValidateName(name)
	}
	if err != nil {
		return nil, badRequest(err.Error())
	}
	return h.Source.Lock(r.Context(), name)
}

func (h *handler) forced(r *http.Request) (any, error) {
	values, err := known(r, "name", "limit")
	if err != nil {
		return nil, err
	}
	n, err := limit(values)
	if err != nil {
		return nil, err
	}
	return api.ForcedList{Forced: h.Source.Forced(values.Get("name"), n)}, nil
}

func (h *handler) status(r *http.Request) (any, error) {
	if _, err := known(r); err != nil {
		return nil, err
	}
	return h.Source.Status(r.Context())
}

// clip bounds what an answer or a log line quotes of a request.
func clip(text string) string { return lock.Clip([]byte(text), 200) }

func errorBody(err error) api.Error { return api.Error{Error: lock.Clip([]byte(err.Error()), 1000)} }
