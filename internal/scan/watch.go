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
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// watching is one watch and its goroutines.
type watching struct {
	*Scanner
	watcher clientv3.Watcher
	// applying is held while events are applied and seen is updated.
	applying sync.Mutex
	// seen is the revision up to which the table has every event.
	seen atomic.Int64
	// streams counts the streams that the client library has opened: it resumes a
	// watch by itself.
	streams atomic.Int64
	current currency
	// resumed asks for a check of what etcd shows after the watch stood still.
	resumed chan struct{}

	// last is when the last response arrived, which only follow uses, and opened how many
	// streams there were then.
	last   time.Time
	opened atomic.Int64
}

// currency is whether the watch is known to be current.
type currency struct {
	mu sync.Mutex
	// liveAfter is the revision after which events are observed live.
	liveAfter int64
	// stalls counts how often the watch stood still.
	stalls int
}

const notLive = math.MaxInt64

// stall records that the watch stood still: what it shows from now on has waited.
func (c *currency) stall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.liveAfter = notLive
	c.stalls++
}

// resume records that all that was written up to a revision had been written before
// the watch moved again. It does nothing where the watch has stood still once more.
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

// watch watches the prefix from revision rev, that of the listing, until the watch fails. It
// starts at rev rather than rev + 1: on an idle cluster a watch that starts after the current
// revision gets no progress notice, and would look dead. The table drops the events at rev,
// which the listing contained.
func (s *Scanner) watch(ctx context.Context, rev int64) error {
	w := &watching{Scanner: s, resumed: make(chan struct{}, 1)}
	w.watcher = etcd.NewWatcher(s.Client, w.opens)
	w.seen.Store(rev)
	w.current.stall()
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	// The timer also limits the call of Watch, which waits for the server.
	silence := time.AfterFunc(s.Freshness, func() { cancel(etcd.ErrSilent) })
	var joined sync.WaitGroup
	defer func() {
		silence.Stop()
		cancel(nil)
		go w.watcher.Close() // which may never return
		joined.Wait()
	}()
	events := w.watcher.Watch(ctx, s.Layout.Prefix(), clientv3.WithRange(s.Layout.End()), clientv3.WithRev(rev), clientv3.WithFragment())
	joined.Go(func() { etcd.AskProgress(ctx, w.watcher, w.progressInterval) })
	joined.Go(func() { w.maintain(ctx, cancel) })
	return w.follow(ctx, events, func() { silence.Reset(s.Freshness) })
}

// follow applies events to the table until the watch fails or ctx is done. It calls alive after
// each response.
func (w *watching) follow(ctx context.Context, responses clientv3.WatchChan, alive func()) error {
	var batch []table.Event
	for {
		select {
		case r, ok := <-responses:
			if err := w.check(ctx, &r, ok); err != nil {
				return err
			}
			w.arrived(time.Now())
			batch = w.events(batch[:0], r.Events)
			if err := w.apply(ctx, batch, &r); err != nil {
				return err
			}
			alive()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// arrived looks whether the stream, or this process, stood still before a response,
// or whether the client library has resumed the watch.
func (w *watching) arrived(now time.Time) {
	gap, opened := now.Sub(w.last), w.streams.Load()
	if gap <= w.Tolerance && opened == w.opened.Load() {
		w.last = now
		return
	}
	w.last = now
	w.opened.Store(opened)
	w.stoodStill()
}

// opens is called when the client library has opened a stream. Where etcd went back, a stream that
// resumes past its revision shows nothing for a long time.
func (w *watching) opens() {
	if w.streams.Add(1) > 1 {
		w.stoodStill()
	}
}

// stoodStill asks for a check of what etcd shows.
func (w *watching) stoodStill() {
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
		if err := w.Table.Replay(ctx, batch[:late], w.lastCurrent); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	if late < len(batch) {
		if err := w.Table.Apply(ctx, batch[late:]); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	w.progressed(r)
	if liveAfter != notLive && w.seen.Load() >= liveAfter {
		w.lastCurrent = w.last
	}
	return nil
}

// check returns an error if the watch cannot continue after a response.
func (w *watching) check(ctx context.Context, r *clientv3.WatchResponse, ok bool) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ok:
		return etcd.ErrEnded
	case r.Err() != nil:
		return r.Err()
	}
	if cluster := w.history.cluster(); cluster != 0 && r.Header.GetClusterId() != 0 && r.Header.GetClusterId() != cluster {
		return errRegressed
	}
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
	w.status.progressed(w.history.saw(0, seen, newest, deleted))
}

// events converts events of etcd to events of the table.
func (w *watching) events(into []table.Event, from []*clientv3.Event) []table.Event {
	for _, ev := range from {
		name, field, valid := w.Layout.Split(ev.Kv.Key)
		e := table.Event{Name: name, KV: toKV(ev.Kv), Deleted: ev.Type == mvccpb.DELETE}
		if valid {
			e.KV.Field = protocol.ParseField(field)
		}
		into = append(into, e)
	}
	return into
}

// catchUpInterval is how often progress is asked for until the watch is current.
const catchUpInterval = 100 * time.Millisecond

// progressInterval is the pause after a request for a progress notice: there are several within
// the freshness and two within the tolerance, since a watch that shows nothing for longer stood
// still, and more until the watch is current.
func (w *watching) progressInterval() time.Duration {
	pause := min(w.Freshness/4, w.Tolerance/2)
	if liveAfter, _ := w.current.get(); liveAfter == notLive {
		pause = min(catchUpInterval, pause)
	}
	return pause
}
