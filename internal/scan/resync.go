package scan

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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
	_, stalls := w.current.get()
	h, err := w.checkHistory(ctx)
	if err != nil {
		return err
	}
	w.current.resume(stalls, h.Revision)
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

const (
	// lagBatch is the number of revisions in a batch of etcd.
	lagBatch = 1000
	// lagLooks is how often in a row the lag must have grown.
	lagLooks = 2
)

// grows is called at an interval with the newest revision of etcd, and the one that the watch has passed. It reports
// whether the watch has not even passed what was the newest one an interval ago, and is further behind each time.
func (l *lag) grows(newest, passed int64) bool {
	behind := newest - passed
	if l.grown++; passed >= l.newest || behind <= max(l.behind, lagBatch) {
		l.grown = 0
	}
	l.newest, l.behind = newest, behind
	return l.grown >= lagLooks
}
