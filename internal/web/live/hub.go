package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Source has the locks and the status. Only Run calls it.
type Source interface {
	// Windows returns the first page of each query, ordered by urgency and cut by api.Fit, and for
	// how long it kept the locks from those who remove them.
	Windows(ctx context.Context, queries []api.Query) (pages []api.LockPage, blocked time.Duration, err error)
	// Changed returns the channel that has a value if any lock may have changed since the last
	// value was received from it.
	Changed() <-chan struct{}
	// Status returns the status of the daemon.
	Status(ctx context.Context) (api.Status, error)
}

// Options are the options of New.
type Options struct {
	Source Source
	Logger *slog.Logger
}

const (
	// maxClients bounds the streams, maxViews the different queries.
	maxClients, maxViews = 256, 32
	// idleTime is how long a view is kept for clients that come back.
	idleTime = 30 * time.Second
)

// ErrBusy is the error for a stream too many, and for any stream after Run has returned.
var ErrBusy = errors.New("too many event streams, or too many different ones, try again")

// Hub serves the streams.
type Hub struct {
	Options
	mu      sync.Mutex
	views   map[string]*view
	clients int
	status  []byte // the newest status event

	// joined has a value if a client came since Run looked.
	joined  chan struct{}
	stopped chan struct{}
}

// New returns a hub without clients.
func New(o Options) (*Hub, error) {
	if o.Source == nil || o.Logger == nil {
		return nil, errors.New("live: Source and Logger are required")
	}
	return &Hub{Options: o, views: make(map[string]*view), joined: make(chan struct{}, 1), stopped: make(chan struct{})}, nil
}

// join returns the view of a query, with one client more.
func (h *Hub) join(q api.Query) (*view, error) {
	slices.Sort(q.States)
	q.States = slices.Compact(q.States)
	key := fmt.Sprintf("%q %q %q %q %d", q.States, q.Contains, q.Hostname, q.Owner, q.Limit)
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.views[key]
	if h.clients >= maxClients || v == nil && !h.room() {
		return nil, ErrBusy
	}
	if v == nil {
		v = newView(q)
		h.views[key] = v
	}
	v.clients++
	h.clients++
	select {
	case h.joined <- struct{}{}:
	default:
	}
	return v, nil
}

// room reports whether there may be another view. It drops the one that was idle for longest if
// there are too many.
func (h *Hub) room() bool {
	if len(h.views) < maxViews {
		return true
	}
	oldest := ""
	for key, v := range h.views {
		if v.clients == 0 && (oldest == "" || v.left.Before(h.views[oldest].left)) {
			oldest = key
		}
	}
	delete(h.views, oldest)
	return oldest != ""
}

func (h *Hub) leave(v *view) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients--
	if v.clients--; v.clients == 0 {
		v.fresh, v.left = false, time.Now()
	}
}

// forget drops the views that were without clients for idleTime.
func (h *Hub) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, v := range h.views {
		if v.clients == 0 && time.Since(v.left) > idleTime {
			delete(h.views, key)
		}
	}
}

// watched returns the views that have clients, and those of them that are not fresh.
func (h *Hub) watched() (all, stale []*view) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		if v.clients == 0 {
			continue
		}
		all = append(all, v)
		if !v.fresh {
			stale = append(stale, v)
		}
	}
	return all, stale
}
