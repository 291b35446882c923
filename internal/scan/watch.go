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

// watching is one watch and its goroutines.
type watching struct {
	*Scanner
	watcher clientv3.Watcher
	// applying is held while events are applied and seen is updated.
	applying sync.Mutex
	// seen is the revision up to which the table has every event.
	seen atomic.Int64
	// live is set once a progress notice has shown that the watch has caught up. Later events
	// arrive when they happen.
	live atomic.Bool
}

// watch watches the prefix from revision rev, that of the listing, until the watch fails. It
// starts at rev rather than rev + 1: on an idle cluster a watch that starts after the current
// revision gets no progress notice, and would look dead. The table drops the events at rev,
// which the listing contained.
func (s *Scanner) watch(ctx context.Context, rev int64) error {
	w := &watching{Scanner: s, watcher: s.NewWatcher()}
	w.seen.Store(rev)
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	// The timer also limits the call of Watch, which waits for the server.
	silence := time.AfterFunc(s.Freshness, func() { cancel(errStalled) })
	var joined sync.WaitGroup
	defer func() {
		silence.Stop()
		cancel(nil)
		_ = w.watcher.Close()
		joined.Wait()
	}()
	events := w.watcher.Watch(ctx, s.Layout.Prefix(), clientv3.WithRange(s.Layout.End()), clientv3.WithRev(rev), clientv3.WithFragment())
	joined.Go(func() { w.requestProgress(ctx) })
	if s.Resync > 0 {
		joined.Go(func() { w.resync(ctx, cancel) })
	}
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

// check returns an error if the watch cannot continue after a response.
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

// progressed records the revision that the watch has reached. The revision in the header of a
// response with events may be far ahead of them; that of a progress notice is not.
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

// events converts events of etcd to events of the table.
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

// catchUpInterval is the interval of progress requests until the first notice, which shows that
// the watch has caught up.
const catchUpInterval = 100 * time.Millisecond

// requestProgress requests progress notices, several within the freshness. It has its own
// goroutine because the call blocks while the stream reconnects. ctx must be the context of the
// watch, by which clientv3 finds the stream.
func (w *watching) requestProgress(ctx context.Context) {
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
