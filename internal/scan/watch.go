package scan

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/table"
)

// watching is one watch, with the goroutines beside it.
type watching struct {
	*Scanner
	watcher clientv3.Watcher
	// applying is held while events are applied and seen follows.
	applying sync.Mutex
	// seen is the revision up to which the table has every event.
	seen atomic.Int64
	// live is set once a progress notice has shown that the watch has caught up, so
	// that events arrive when they happen.
	live atomic.Bool
}

// watch watches the prefix from revision rev, which the table has, until that
// fails. It starts at rev and not after it: on an idle cluster a watch that starts
// ahead of the store gets no progress notice, and would look dead. The table drops
// the events of rev itself, which the listing contained.
func (s *Scanner) watch(ctx context.Context, rev int64) error {
	w := &watching{Scanner: s, watcher: s.NewWatcher()}
	w.seen.Store(rev)
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	// It also bounds the call of Watch, which waits for the server to answer.
	silence := time.AfterFunc(s.Freshness, func() { cancel(errStalled) })
	var beside sync.WaitGroup
	defer func() {
		silence.Stop()
		cancel(nil)
		_ = w.watcher.Close()
		beside.Wait()
	}()
	events := w.watcher.Watch(ctx, s.Layout.Prefix(), clientv3.WithRange(s.Layout.End()), clientv3.WithRev(rev), clientv3.WithFragment())
	beside.Go(func() { w.askProgress(ctx) })
	if s.Resync > 0 {
		beside.Go(func() { w.resync(ctx, cancel) })
	}
	return w.follow(ctx, events, func() { silence.Reset(s.Freshness) })
}

// follow applies events to the table until the watch fails or ctx is done, and
// calls alive at each event or progress notice.
func (w *watching) follow(ctx context.Context, responses clientv3.WatchChan, alive func()) error {
	var batch []table.Event
	for {
		select {
		case r, ok := <-responses:
			if err := w.check(ctx, &r, ok); err != nil {
				return err
			}
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

func (w *watching) apply(ctx context.Context, batch []table.Event, r *clientv3.WatchResponse) error {
	w.applying.Lock()
	defer w.applying.Unlock()
	if len(batch) > 0 {
		if err := w.Table.Apply(ctx, batch, w.live.Load()); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	w.progressed(r)
	return nil
}

// check returns why the watch cannot go on after a response.
func (w *watching) check(ctx context.Context, r *clientv3.WatchResponse, ok bool) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ok:
		return errEnded
	case r.Err() != nil:
		return r.Err()
	case r.Header.GetClusterId() != 0 && r.Header.GetClusterId() != w.cluster:
		return errRegressed
	}
	return nil
}

// progressed records how far the watch has come. The header of a response with
// events may be far ahead of them; that of a progress notice is not.
func (w *watching) progressed(r *clientv3.WatchResponse) {
	seen := r.Header.GetRevision()
	if n := len(r.Events); n > 0 {
		seen = r.Events[n-1].Kv.ModRevision
	} else if !r.IsProgressNotify() {
		return
	}
	if r.IsProgressNotify() {
		w.live.Store(true)
	}
	if seen > w.seen.Load() {
		w.seen.Store(seen)
	}
	w.revision = max(w.revision, seen)
	w.status.progressed(w.revision)
}

// events turns etcd's events into the table's.
func (w *watching) events(into []table.Event, from []*clientv3.Event) []table.Event {
	for _, ev := range from {
		name, field, valid := w.Layout.Split(ev.Kv.Key)
		e := table.Event{Name: name, KV: toKV(ev.Kv), Deleted: ev.Type == mvccpb.Event_DELETE}
		if valid {
			e.KV.Field = lock.ParseField(field)
		}
		into = append(into, e)
	}
	return into
}

// catchUpInterval is how often progress is asked for until the first notice, which
// shows that the watch has caught up.
const catchUpInterval = 100 * time.Millisecond

// askProgress asks for progress notices, several within the freshness. It runs
// beside follow because the call blocks while the stream reconnects.
// The context must be the watch's own: etcd's client keys its streams by it.
func (w *watching) askProgress(ctx context.Context) {
	for {
		if w.watcher.RequestProgress(ctx) != nil && ctx.Err() != nil {
			return
		}
		pause := w.Freshness / 4
		if !w.live.Load() {
			pause = min(catchUpInterval, pause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
