package scan

import (
	"context"
	"fmt"
	"time"
)

// resync lists all locks at an interval while the watch continues, since some versions of etcd
// lost events around compactions (etcd#17529, #18089, #19179). Differences are corrected and
// counted as drift. If a listing fails, the watch is ended.
func (w *watching) resync(ctx context.Context, fail context.CancelCauseFunc) {
	tick := time.NewTicker(w.Resync)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := w.resyncOnce(ctx); err != nil {
			fail(fmt.Errorf("resync: %w", err))
			return
		}
	}
}

func (w *watching) resyncOnce(ctx context.Context) error {
	now, err := w.header(ctx)
	if err != nil {
		return err
	}
	if err := w.await(ctx, now.Revision); err != nil {
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
// freshness.
func (w *watching) await(ctx context.Context, rev int64) error {
	poll := time.NewTicker(w.Freshness / 100)
	defer poll.Stop()
	for w.seen.Load() < rev {
		if err := w.watcher.RequestProgress(ctx); err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
