package web

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/web/page"
)

// liveParam is the parameter with which a page asks for itself again.
const liveParam = "live"

// Limits of the page of a lock. It is for those in a hurry: it does without the history if that
// takes too long.
const (
	historyTimeout = 2 * time.Second
	maxForced      = 20
)

// lockPage answers /locks/NAME, the path in the links of alerts. It has no history if the page asks
// for itself again.
func (h *handler) lockPage(r *http.Request) (any, error) {
	name, err := h.name(r, pageLock, liveParam)
	if err != nil {
		return nil, err
	}
	view := page.Lock{Name: name, Unlock: h.Unlocker != nil}
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
	view.Forced = h.Source.Forced(name, maxForced)
	if view.Unread == "" && !r.URL.Query().Has(liveParam) {
		view.History, view.NoHistory = h.pageHistory(r.Context(), name)
	}
	return view, nil
}

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

// forcedPage answers /forced with the parameters of /api/v1/forced-unlocks.
func (h *handler) forcedPage(r *http.Request) (any, error) {
	values, err := known(r, "name", "limit", liveParam)
	if err != nil {
		return nil, err
	}
	view := page.Forced{Name: values.Get("name")}
	if view.Limit, err = limit(values); err != nil {
		return nil, err
	}
	if view.Status, err = h.Source.Status(r.Context()); err != nil {
		return nil, err
	}
	view.Forced = h.Source.Forced(view.Name, view.Limit)
	return view, nil
}
