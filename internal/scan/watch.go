package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

type watching struct {
	*Scanner
	// applying is held while events are applied and seen is updated.
	applying sync.Mutex
	// seen is the revision up to which the table has every event.
	seen atomic.Int64
	// streams counts the streams that the client library has opened: it resumes a watch by itself.
	streams atomic.Int64
	// liveAfter is the revision after which events are observed live or, while the watch is not known to be
	// current, notLive and the number of stalls.
	liveAfter, stalls atomic.Int64
	// resumed asks for a check of what etcd shows after the watch stalled.
	resumed chan struct{}

	// last is when the last response arrived, and batch has its events; only each uses them.
	last  time.Time
	batch []table.Event
	// opened is how many streams there were then.
	opened atomic.Int64
}

// notLive is more than any revision.
const notLive = math.MaxInt64 / 2

// stall marks the watch as not current: later events may have been delayed.
func (w *watching) stall() { w.liveAfter.Store(notLive + w.stalls.Add(1)) }

// live marks the watch as current after a revision that was read since it stalled, unless it has stalled again.
func (w *watching) live(stalled, revision int64) { w.liveAfter.CompareAndSwap(stalled, revision) }

// watch returns the state of a watch from revision rev, that of the listing.
func (s *Scanner) watch(rev int64) *watching {
	w := &watching{Scanner: s, resumed: make(chan struct{}, 1)}
	w.seen.Store(rev)
	w.stall()
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
	w.batch = w.batch[:0]
	for _, ev := range r.Events {
		name, key := split(w.Layout, ev.Kv)
		w.batch = append(w.batch, table.Event{Name: name, KV: key, Deleted: ev.Type == mvccpb.DELETE})
	}
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
	w.stall()
	select {
	case w.resumed <- struct{}{}:
	default: // a check that has not begun yet
	}
}

func (w *watching) apply(ctx context.Context, batch []table.Event, r *clientv3.WatchResponse) error {
	w.applying.Lock()
	defer w.applying.Unlock()
	liveAfter, late := w.liveAfter.Load(), 0
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
	w.seen.Store(max(seen, w.seen.Load()))
	w.status.progressed(w.history.saw(0, seen, newest, deleted), w.seen.Load())
}

// progressInterval is the pause after a request for a progress notice: there are several within
// the freshness and two within the tolerance, since a watch that shows nothing for longer counts as
// stalled, and more until the watch is current.
func (w *watching) progressInterval() time.Duration {
	const catchUpInterval = 100 * time.Millisecond // how often progress is asked for until the watch is current
	pause := min(w.Freshness/4, w.Tolerance/2)
	if w.liveAfter.Load() >= notLive {
		pause = min(catchUpInterval, pause)
	}
	return pause
}

// maintain runs during the watch. Whenever that has resumed after a stall, it checks that etcd was
// not restored. Once in an interval, and where the client library has opened another stream, it
// lists all locks: some versions of etcd lost events around compactions (etcd#17529, #18089,
// #19179), and a watch that resumed on a restored etcd may have missed writes. Differences are
// corrected and counted as drift. It ends the watch if that falls behind.
func (w *watching) maintain(ctx context.Context, progress func(context.Context) error) error {
	var tick <-chan time.Time
	if w.Resync > 0 {
		ticker := time.NewTicker(w.Resync)
		defer ticker.Stop()
		tick = ticker.C
	}
	lag, look := lag{}, time.NewTicker(w.Freshness/2)
	defer look.Stop()
	for listed := int64(1); ; { // the streams that there were before the last listing
		var err error
		select {
		case <-tick:
			err = w.resync(ctx, progress)
		case <-w.resumed:
			err = w.resume(ctx)
			if opened := w.opened.Load(); err == nil && opened > listed {
				listed = opened
				err = w.resync(ctx, progress)
			}
		case <-look.C:
			if w.Newest != nil && lag.grows(w.Newest(), w.seen.Load()) {
				err = errLagging
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("check during the watch: %w", err)
		}
	}
}

// resume checks what etcd shows after the watch stalled. Everything that waited had
// been written before the current revision was read: later events are observed live.
func (w *watching) resume(ctx context.Context) error {
	stalled := w.liveAfter.Load()
	h, err := w.checkHistory(ctx)
	if err != nil {
		return err
	}
	w.live(stalled, h.Revision)
	return nil
}

func (w *watching) resync(ctx context.Context, progress func(context.Context) error) error {
	now, err := w.checkHistory(ctx)
	if err != nil {
		return err
	}
	if err := w.await(ctx, now.Revision, progress); err != nil {
		return err
	}
	rev, err := w.begin(ctx)
	if err != nil {
		return err
	}
	return w.list(ctx, rev, true)
}

// begin begins a listing at exactly the revision up to which the table has all events. At an
// older one, newer events would look like drift. At a newer one, a lock that was removed in the
// meantime would appear again.
func (w *watching) begin(ctx context.Context) (rev int64, err error) {
	w.applying.Lock()
	defer w.applying.Unlock()
	rev = w.seen.Load()
	return rev, w.Table.Begin(ctx, rev, true)
}

// await waits until the watch has reached a revision. If it never does, ctx ends after the
// freshness. The revision may be of before a restore, so a watch that resumes is checked here too.
func (w *watching) await(ctx context.Context, rev int64, progress func(context.Context) error) error {
	poll := time.NewTicker(w.Freshness / 100)
	defer poll.Stop()
	for w.seen.Load() < rev {
		if err := progress(ctx); err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-w.resumed:
			if err := w.resume(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

var errLagging = errors.New("the watch falls behind")

// lag follows by how many revisions a watch is behind. etcd hands a watch that is not current at most a batch in
// 100 ms (measured: 4,500 revisions a second). Where more is written it never catches up, and a new watch from the
// present revision does.
type lag struct {
	newest, behind int64
	grown          int
}

// grows is called at an interval with the newest revision of etcd, and the one that the watch has passed. It reports
// whether the watch has not even passed what was the newest one an interval ago, and is further behind each time.
func (l *lag) grows(newest, passed int64) bool {
	const batch = 1000 // revisions in a batch of etcd
	const looks = 2    // how often in a row the lag must have grown
	behind := newest - passed
	if l.grown++; passed >= l.newest || behind <= max(l.behind, batch) {
		l.grown = 0
	}
	l.newest, l.behind = newest, behind
	return l.grown >= looks
}
