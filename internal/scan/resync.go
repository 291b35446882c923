package scan

import (
	"context"
	"fmt"
	"time"
)

// resync lists beside the watch once in an interval: some versions of etcd lost
// events around compactions (etcd#17529, #18089, #19179). Differences are corrected
// and counted as drift. A listing that fails ends the watch.
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

// begin begins a listing at exactly the revision up to which the table has the
// events: with an older one, late events would look like drift; with a newer one, a
// lock removed meanwhile would appear again.
func (w *watching) begin(ctx context.Context) (rev int64, err error) {
	w.applying.Lock()
	defer w.applying.Unlock()
	rev = w.seen.Load()
	return rev, w.Table.Begin(ctx, rev, true)
}

// await waits until the watch has reached a revision. Where it never does, the
// freshness ends ctx.
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
