// Package live sends clients a window of the locks, the first by urgency that match a query, and
// keeps it up to date: as JSON (GET /api/v1/events), or in another Format.
//
// Guaranteed: a client that applies the events in their order has what a page of the query showed
// at the last pass. Whatever the clients do, memory is bounded: equal queries in the same format
// share one view, which has one window, of at most 1 MiB as JSON, and one ring of encoded events, of
// half a MiB. A window that would be larger has fewer locks. A whole window is encoded once for all
// clients, and kept only while it is sent to one of them, as are older ones for slow clients.
// Clients are positions in the ring and have no buffer; one that is too slow for the ring gets the
// whole window again, and one that does not read is disconnected. The locks are scanned only while
// there are clients and something has changed, once for all views, and a scan blocks removals for at
// most 5 % of the time, or a quarter while new queries come. Not guaranteed: each state in between,
// which a lock may have for less than the time from one pass to the next.
package live

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
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

// Format is how events are encoded.
type Format struct {
	// Name identifies the format: equal queries in the same format share a view.
	Name string
	// Encode returns the data of an event for the clients of a query that have this window.
	Encode func(q api.Query, window api.LockPage, e api.Event) ([]byte, error)
}

// JSON returns the format of the API.
func JSON() Format {
	return Format{"json", func(_ api.Query, _ api.LockPage, e api.Event) ([]byte, error) {
		data, err := json.Marshal(e)
		return terminal.EscapeJSON(data), err
	}}
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
	source  Source
	logger  *slog.Logger
	mu      sync.Mutex
	views   map[string]*view
	clients int

	// joined has a value if a client came since Run looked.
	joined  chan struct{}
	stopped chan struct{}
}

// New returns a hub without clients.
func New(source Source, logger *slog.Logger) *Hub {
	return &Hub{source: source, logger: logger, views: make(map[string]*view), joined: make(chan struct{}, 1), stopped: make(chan struct{})}
}

// join returns the view of a query in a format, with one client more.
func (h *Hub) join(q api.Query, f Format) (*view, error) {
	slices.Sort(q.States)
	q.States = slices.Compact(q.States)
	key := fmt.Sprintf("%s %#v", f.Name, q) // all of it, quoted
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.views[key]
	if h.clients >= maxClients || v == nil && !h.room() {
		return nil, ErrBusy
	}
	if v == nil {
		v = &view{query: q, format: f, epoch: rand.Text()[:10], grown: make(chan struct{})}
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
	maps.DeleteFunc(h.views, func(_ string, v *view) bool { return v.clients == 0 && time.Since(v.left) > idleTime })
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

const (
	// minRest is the minimum pause after a pass. It is also restFactor times as long as the pass
	// blocked the locks, fillFactor times if it was one for views that were not fresh, and
	// workFactor times as long as it took.
	minRest                            = 50 * time.Millisecond
	restFactor, fillFactor, workFactor = 20, 3, 3
	// maxRate bounds what all clients together are sent, in bytes per second, resets after a pause
	// and the first window of each not included.
	maxRate = 4 << 20
	// interval is how often the status is read.
	interval = time.Second
	// refreshAfter is how soon locks that wait for their removal, or a renewal, are read again: what
	// is said of them changes with time.
	refreshAfter = 5 * time.Second
)

type runner struct {
	*Hub
	// dirty reports whether something changed since the last pass of all views began at passed.
	dirty  bool
	passed time.Time
	// next is when the next pass of all views may begin, fill that of those that are not fresh.
	next, fill time.Time
	status     api.Status
	read       time.Time
}

// Run keeps the views up to date until ctx is done. Then it ends all streams, and returns nil.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.stopped)
	r := runner{Hub: h}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		all, stale := h.watched()
		var changed <-chan struct{}
		if len(all) > 0 && !r.dirty {
			changed = h.source.Changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.joined:
		case <-changed:
			r.dirty = true
		case <-r.rested(all, stale):
			r.pass(ctx, all, stale)
		case <-tick.C:
			h.forget()
			r.look(ctx, all)
		}
	}
}

// rested returns a channel that has a value when the next pass may begin, nil if there is nothing
// to do.
func (r *runner) rested(all, stale []*view) <-chan time.Time {
	switch {
	case r.dirty && len(all) > 0 && (len(stale) == 0 || r.next.Before(r.fill)):
		return time.After(time.Until(r.next))
	case len(stale) > 0:
		return time.After(time.Until(r.fill))
	}
	return nil
}

// pass updates all views if it is time for that, or else those that are not fresh.
func (r *runner) pass(ctx context.Context, all, stale []*view) {
	start := time.Now()
	r.readStatus(ctx)
	if r.dirty && !start.Before(r.next) {
		r.passed = start
		r.next, r.dirty = r.update(ctx, all, restFactor)
		return
	}
	r.fill, _ = r.update(ctx, stale, fillFactor)
}

// update makes one pass over the locks. It returns when the next one may begin, and whether it must,
// since this one failed.
func (r *runner) update(ctx context.Context, views []*view, factor time.Duration) (next time.Time, failed bool) {
	start := time.Now()
	queries := make([]api.Query, len(views))
	for i, v := range views {
		queries[i] = v.query
	}
	pages, blocked, err := r.source.Windows(ctx, queries)
	sent := 0
	for i := 0; err == nil && i < len(views); i++ {
		var n int
		n, err = r.install(views[i], pages[i])
		sent += n
	}
	end := time.Now()
	if err != nil {
		r.failed(ctx, err)
		return end.Add(interval), true
	}
	return end.Add(max(minRest, factor*blocked, workFactor*end.Sub(start), time.Duration(sent)*time.Second/maxRate)), false
}

func (r *runner) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.logger.Error("cannot update event streams", "error", err)
	}
}

// install makes a page the window of a view. Only Run writes windows, so it needs the mutex for
// that alone.
func (r *runner) install(v *view, page api.LockPage) (sent int, err error) {
	page, before := settle(v.page, page)
	events, err := v.changes(page, before)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sent = v.install(page, events)
	if v.status == nil && !r.read.IsZero() {
		err = v.tell(&r.status)
	}
	return sent, err
}

// look reads the status, and finds out what changes with time alone.
func (r *runner) look(ctx context.Context, all []*view) {
	if len(all) == 0 {
		return
	}
	before := r.status
	r.readStatus(ctx)
	held := !reflect.DeepEqual(before.Holds, r.status.Holds) || !reflect.DeepEqual(before.Pauses, r.status.Pauses) || before.Leads != r.status.Leads
	r.dirty = r.dirty || held || time.Since(r.passed) >= refreshAfter && waiting(all)
}

// waiting reports whether a window has a lock that waits for its removal, or whose holder may miss a renewal.
func waiting(views []*view) bool {
	for _, v := range views {
		for i := range v.page.Locks {
			if l := &v.page.Locks[i]; l.Explanation != "" && !l.Due.IsZero() || l.Rhythm != nil {
				return true
			}
		}
	}
	return false
}

// readStatus sends the status if it has changed, and keeps it. It does nothing if it has just been
// read.
func (r *runner) readStatus(ctx context.Context) {
	if time.Since(r.read) < interval*9/10 {
		return
	}
	status, err := r.source.Status(ctx)
	if err != nil {
		r.failed(ctx, err)
		return
	}
	known, before := !r.read.IsZero(), r.status
	before.Now, before.Etcd.Probed = status.Now, status.Etcd.Probed // these change all the time
	r.read, r.status = time.Now(), status
	if known && reflect.DeepEqual(before, status) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.views {
		if err := v.tell(&status); err != nil {
			r.failed(ctx, err)
		}
	}
}
