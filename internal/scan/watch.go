package scan

import (
	"cmp"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// watching is one watch and its goroutines.
type watching struct {
	*Scanner
	// applying is held while events are applied and seen is updated.
	applying sync.Mutex
	// seen is the revision up to which the table has every event.
	seen atomic.Int64
	// streams counts the streams that the client library has opened: it resumes a watch by itself.
	streams atomic.Int64
	current currency
	// resumed asks for a check of what etcd shows after the watch stalled.
	resumed chan struct{}

	// last is when the last response arrived, and batch has its events; only each uses them.
	last  time.Time
	batch []table.Event
	// opened is how many streams there were then.
	opened atomic.Int64
}

// currency is whether the watch is known to be current.
type currency struct {
	mu sync.Mutex
	// liveAfter is the revision after which events are observed live.
	liveAfter int64
	// stalls counts how often the watch has stalled.
	stalls int
}

const notLive = math.MaxInt64

// stall marks the watch as not current: later events may have been delayed.
func (c *currency) stall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.liveAfter = notLive
	c.stalls++
}

// resume marks the watch as current after a revision that was read since it resumed. It does
// nothing if the watch has stalled again.
func (c *currency) resume(stalls int, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stalls == stalls {
		c.liveAfter = revision
	}
}

func (c *currency) get() (liveAfter int64, stalls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.liveAfter, c.stalls
}

// watch returns the state of a watch from revision rev, that of the listing.
func (s *Scanner) watch(rev int64) *watching {
	w := &watching{Scanner: s, resumed: make(chan struct{}, 1)}
	w.seen.Store(rev)
	w.current.stall()
	return w
}

// run returns the watch itself. It starts at the revision of the listing rather than after it: on
// an idle cluster a watch that starts after the current revision gets no progress notice, and would
// look dead. The table drops the events at that revision, which the listing contained.
func (w *watching) run() etcd.Watch {
	return etcd.Watch{
		Client: w.Client, Key: w.Layout.Prefix(),
		Options: []clientv3.OpOption{clientv3.WithRange(w.Layout.End()), clientv3.WithRev(w.seen.Load()), clientv3.WithFragment()},
		Silence: w.Freshness, Each: w.each, Opened: w.opens, Progress: w.progressInterval, During: w.maintain,
	}
}

func (w *watching) each(ctx context.Context, r clientv3.WatchResponse) error {
	if cluster := w.history.cluster(); cluster != 0 && r.Header.GetClusterId() != 0 && r.Header.GetClusterId() != cluster {
		return errRegressed
	}
	w.arrived(time.Now())
	w.batch = w.events(w.batch[:0], r.Events)
	return w.apply(ctx, w.batch, &r)
}

// arrived checks whether the stream or this process stalled before a response, or the client
// library has resumed the watch.
func (w *watching) arrived(now time.Time) {
	gap, opened := now.Sub(w.last), w.streams.Load()
	if gap <= w.Tolerance && opened == w.opened.Load() {
		w.last = now
		return
	}
	w.last = now
	w.opened.Store(opened)
	w.stalled()
}

// opens is called when the client library has opened a stream. After a restore, a stream resumed
// beyond etcd's revision stays silent for a long time.
func (w *watching) opens(streams int64) error {
	w.streams.Store(streams)
	if streams > 1 {
		w.stalled()
	}
	return nil
}

// stalled asks for a check of what etcd shows.
func (w *watching) stalled() {
	w.history.doubt()
	w.current.stall()
	select {
	case w.resumed <- struct{}{}:
	default: // a check that has not begun yet
	}
}

func (w *watching) apply(ctx context.Context, batch []table.Event, r *clientv3.WatchResponse) error {
	w.applying.Lock()
	defer w.applying.Unlock()
	liveAfter, _ := w.current.get()
	late := 0
	for late < len(batch) && batch[late].KV.Mod <= liveAfter {
		late++
	}
	if late > 0 {
		if err := w.Table.Replay(ctx, batch[:late]); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	if late < len(batch) {
		if err := w.Table.Apply(ctx, batch[late:]); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	w.progressed(r)
	return nil
}

// progressed records the revision that the watch has reached. The revision in the header of a
// response with events may be far ahead of them; that of a progress notice is not.
func (w *watching) progressed(r *clientv3.WatchResponse) {
	seen := r.Header.GetRevision()
	var newest *mvccpb.KeyValue
	deleted := false
	if n := len(r.Events); n > 0 {
		newest, deleted = r.Events[n-1].Kv, r.Events[n-1].Type == mvccpb.DELETE
		seen = newest.ModRevision
	} else if !r.IsProgressNotify() {
		return
	}
	if seen > w.seen.Load() {
		w.seen.Store(seen)
	}
	w.status.progressed(w.history.saw(0, seen, newest, deleted), w.seen.Load())
}

func (w *watching) events(into []table.Event, from []*clientv3.Event) []table.Event {
	for _, ev := range from {
		name, key := split(w.Layout, ev.Kv)
		into = append(into, table.Event{Name: name, KV: key, Deleted: ev.Type == mvccpb.DELETE})
	}
	return into
}

// catchUpInterval is how often progress is asked for until the watch is current.
const catchUpInterval = 100 * time.Millisecond

// progressInterval is the pause after a request for a progress notice: there are several within
// the freshness and two within the tolerance, since a watch that shows nothing for longer counts as
// stalled, and more until the watch is current.
func (w *watching) progressInterval() time.Duration {
	pause := min(w.Freshness/4, w.Tolerance/2)
	if liveAfter, _ := w.current.get(); liveAfter == notLive {
		pause = min(catchUpInterval, pause)
	}
	return pause
}
