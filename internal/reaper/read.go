package reaper

import (
	"context"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// aloneSlots and slowSlots are how many locks of each queue are handled at a time.
	aloneSlots, slowSlots = 8, 4
	// maxAlone is how many locks may wait in each queue. Others are put back for aloneRetry.
	maxAlone   = 1 << 10
	aloneRetry = time.Second
	// readTimeout is the least limit.
	readTimeout = 500 * time.Millisecond
)

// divert takes out the locks that must not be read with others.
func (w *worker) divert(due []table.Due) []table.Due {
	return slices.DeleteFunc(due, func(d table.Due) bool {
		alone := d.Slow || lockstore.Large(&d.Lock)
		if alone {
			w.readAlone(d)
		}
		return alone
	})
}

// readAlone queues a lock that must be read alone, so that it delays no other.
func (w *worker) readAlone(d table.Due) {
	queue := w.alone
	if d.Slow {
		queue = w.slow
	}
	select {
	case queue <- d:
	default:
		w.postpone(d, aloneRetry)
	}
}

// serve handles the locks of a queue, one at a time.
func (w *worker) serve(ctx context.Context, queue <-chan table.Due) error {
	for {
		select {
		case d := <-queue:
			w.handleAlone(ctx, d)
		case <-ctx.Done():
			return nil
		}
	}
}

// handleAlone reads a lock alone and removes it.
func (w *worker) handleAlone(ctx context.Context, d table.Due) {
	if !w.gate.open() {
		w.postpone(d, 0)
		return
	}
	requests, cancel := w.requests, context.CancelFunc(func() {})
	if !d.Slow {
		requests, cancel = context.WithTimeout(w.requests, time.Duration(w.limit.Load()))
	}
	record, err := w.Store.ReadAlone(requests, d.Lock)
	cancel()
	switch {
	case err == nil:
		_ = w.handle(ctx, []*attempt{{due: d, record: record, alone: true}}) // what failed was put back
	case d.Slow || !w.gate.open():
		_ = w.unreadable([]table.Due{d}, err)
	default:
		d.Slow = true
		w.readAlone(d)
	}
}

// read reads locks whole, together. Those that take more than that are read alone, and all of
// them if one may keep the others from being read. The error is one of etcd.
func (w *worker) read(due []table.Due) ([]*attempt, error) {
	if len(due) == 0 {
		return nil, nil
	}
	locks := make([]protocol.Lock, len(due))
	for i := range due {
		locks[i] = due[i].Lock
	}
	limit, start := time.Duration(w.limit.Load()), time.Now()
	ctx, cancel := context.WithTimeout(w.requests, limit)
	defer cancel()
	records, err := w.Store.Read(ctx, locks)
	took := time.Since(start)
	w.limit.Store(int64(max(readTimeout, min(2*took, w.Store.RequestTimeout))))
	if err != nil && !w.gate.open() {
		return nil, w.unreadable(due, err)
	}
	batch := make([]*attempt, 0, len(due))
	for i, d := range due {
		if err != nil || records[i].Unread() {
			w.readAlone(d)
			continue
		}
		batch = append(batch, &attempt{due: d, record: records[i]})
	}
	return batch, nil
}

// unreadable puts back locks that could not be read. If the gate is closed, the cause is etcd
// rather than the locks.
func (w *worker) unreadable(due []table.Due, err error) error {
	reason := lockstore.Classify(err)
	if reason == lockstore.ReasonAmbiguous {
		reason = lockstore.ReasonUnreadable // a read has no effect that could be unknown
	}
	w.logUnreadable(due, reason, err)
	open := w.gate.open()
	for _, d := range due {
		w.tally.failed(reason)
		if open {
			w.retry(d, refusedBackoff)
		} else {
			w.postpone(d, 0)
		}
	}
	return err
}
