package scan

import (
	"context"
	"fmt"
	"time"
)

// resync lists beside the watch now and then: some versions of etcd lost
// events around compactions (etcd#17529, #18089, #19179). What it finds
// different is put right and counted as drift. A listing that fails ends the
// watch, and all begins anew.
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

// begin begins a listing at the very revision up to which the table has the
// events: were it behind, what is only late would look like drift; were it
// ahead, a lock removed meanwhile would come back to life.
func (w *watching) begin(ctx context.Context) (rev int64, err error) {
	w.handing.Lock()
	defer w.handing.Unlock()
	rev = w.seen.Load()
	return rev, w.Table.Begin(ctx, rev, true)
}

// await waits until the watch has come up to a revision. Where it never does,
// the silence ends ctx.
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
