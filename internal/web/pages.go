package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/web/page"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func (h *handler) dashboard(r *http.Request, values url.Values) (any, error) {
	q, err := query(values)
	if err != nil {
		return nil, err
	}
	q.ByUrgency = true
	filter := page.Filter{Query: q, Group: values.Get("group")}
	if !slices.Contains(filter.Groups(), filter.Group) {
		return nil, badRequest(fmt.Sprintf("group: must be owner or hostname, not %q", clip(filter.Group)))
	}
	locks, err := h.list(r, q)
	if err != nil {
		return nil, err
	}
	filter.Arrange(locks.Locks)
	status, err := h.Source.Status(r.Context())
	return page.Dashboard{Status: status, LockPage: locks, Filter: filter}, err
}

func (h *handler) nativePage(ctx context.Context) (page.Native, error) {
	list, err := h.Source.Native(ctx)
	status, unknown := h.Source.Status(ctx)
	return page.Native{Status: status, NativeList: list}, cmp.Or(err, unknown)
}

func (h *handler) healthPage(ctx context.Context) (page.Health, error) {
	status, err := h.Source.Status(ctx)
	return page.Health{Status: status}, err
}

func (h *handler) actionsPage(r *http.Request, values url.Values) (any, error) {
	user, noUser := h.signedIn(r)
	status, err := h.Source.Status(r.Context())
	return page.Actions{Status: status, User: user, NoUser: noUser, Match: values.Get("match")}, err
}

// signedIn returns the user who asks, or why that is not known.
func (h *handler) signedIn(r *http.Request) (user, not string) {
	user, err := h.Unlocker.User(r)
	if err != nil {
		not = errorBody(err).Error
	}
	return user, not
}

func (h *handler) sendPage(w http.ResponseWriter, r *http.Request, status int, answer any) {
	if e, failed := answer.(api.Error); failed {
		problem := page.Problem{Status: status, Text: e.Error}
		if strings.HasPrefix(strings.TrimPrefix(r.URL.EscapedPath(), h.PathPrefix), pageLock) {
			problem.Lock, _ = h.name(r, pageLock) // the error may be of the name
		}
		answer = problem
	}
	if l, isLock := answer.(page.Lock); isLock && l.Gone() {
		status = http.StatusNotFound
	}
	body, err := h.encode(func() ([]byte, error) { return h.pages.Render(answer.(page.View), time.Now()) })
	if err != nil {
		h.Logger.Error("cannot render a page", "error", err)
		status, body = http.StatusInternalServerError, []byte("cannot render the page; the log of the daemon has the reason\n")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", page.Policy)
	page.Send(w, r, status, body, page.Gzip)
}

// name returns the name of a lock that follows a path, with plain or escaped slashes.
func (h *handler) name(r *http.Request, path string) (string, error) {
	name, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), h.PathPrefix+path))
	// A browser would resolve these names: the links of pages have a slash after them.
	if dots, rest, _ := strings.Cut(name, "/"); (dots == "." || dots == "..") && (rest == "" || rest == verb || rest == askVerb) {
		name = dots + rest
	}
	if err == nil {
		err = protocol.ValidateName(name)
	}
	if err != nil {
		return "", badRequest(err.Error())
	}
	return name, nil
}

// liveParam is the parameter with which a page asks for itself again.
const liveParam = "live"

// lockPage answers /locks/NAME, the path in the links of alerts. It has no history if the page asks
// for itself again.
func (h *handler) lockPage(r *http.Request, values url.Values) (any, error) {
	const maxForced, maxWaiters = 20, 100
	name, err := h.name(r, pageLock)
	if err != nil {
		return nil, err
	}
	view := page.Lock{Name: name, Unlock: h.Unlocker != nil}
	if h.Unlocker != nil && !values.Has(liveParam) {
		view.User, view.NoUser = h.signedIn(r)
	}
	if view.Status, err = h.Source.Status(r.Context()); err != nil {
		return nil, err
	}
	detail, err := h.Source.Lock(r.Context(), name)
	if err != nil && !errors.Is(err, ErrNoLock) {
		view.Unread = errorBody(err).Error
	}
	if detail.Name != "" {
		view.Detail = &detail
	}
	view.Forced, view.Waiters = h.Source.Forced(name, maxForced), h.Source.Waiters(name, maxWaiters)
	if view.Unread == "" && !values.Has(liveParam) {
		view.History, view.NoHistory = h.pageHistory(r.Context(), name)
	}
	return view, nil
}

// historyTimeout is for those in a hurry: the page does without the history if that takes longer.
const historyTimeout = 2 * time.Second

// pageHistory returns the history of a lock, or why there is none.
func (h *handler) pageHistory(ctx context.Context, name string) (*page.History, string) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	past, err := h.Source.History(ctx, name)
	if err != nil {
		return nil, errorBody(err).Error
	}
	return page.NewHistory(past), ""
}

func (h *handler) forcedPage(r *http.Request, values url.Values) (any, error) {
	shown, err := limit(values)
	if err != nil {
		return nil, err
	}
	name := values.Get("name")
	status, err := h.Source.Status(r.Context())
	return page.Forced{Status: status, Name: name, Limit: shown, Forced: h.Source.Forced(name, shown)}, err
}
