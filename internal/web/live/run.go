package live

import (
	"context"
	"reflect"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

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
			changed = h.Source.Changed()
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
	pages, blocked, err := r.Source.Windows(ctx, queries)
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
		r.Logger.Error("cannot update event streams", "error", err)
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
	status, err := r.Source.Status(ctx)
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
