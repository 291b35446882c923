package reaper

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// aloneSlots and slowSlots are how many locks of each lane are handled at a time.
	aloneSlots, slowSlots = 8, 4
	// maxAlone is how many locks may wait in each lane. Others are put back for aloneRetry.
	maxAlone   = 1 << 10
	aloneRetry = time.Second
	// readTimeout is the minimum of the limit.
	readTimeout = 500 * time.Millisecond
)

// lane has the locks that are read alone, so that they delay no others. Those in worker.slow could
// not be read within the limit.
type lane struct {
	// all are the slots of the locks in the lane, and reading those of the ones that do not wait.
	all, reading *semaphore.Weighted
}

func newLane(reading int64) lane {
	return lane{all: semaphore.NewWeighted(reading + maxAlone), reading: semaphore.NewWeighted(reading)}
}

// readAlone moves an attempt to a lane, where a goroutine of its own waits and takes it on.
func (w *worker) readAlone(ctx context.Context, a *attempt) {
	lane := w.alone
	if a.due.Slow {
		lane = w.slow
	}
	a.alone = true
	if !lane.all.TryAcquire(1) {
		w.end(ends.crowded, a)
		return
	}
	w.group.Go(func() error {
		defer lane.all.Release(1)
		if lane.reading.Acquire(ctx, 1) == nil {
			defer lane.reading.Release(1)
			w.walkAlone(ctx, a)
		}
		return nil
	})
}

// walkAlone is walk for a lock that is read alone.
func (w *worker) walkAlone(ctx context.Context, a *attempt) {
	if !w.gate.open() {
		w.end(ends.held, a)
		return
	}
	requests, cancel := w.requests, context.CancelFunc(func() {})
	if !a.due.Slow {
		requests, cancel = context.WithTimeout(w.requests, time.Duration(w.limit.Load()))
	}
	record, err := w.Store.ReadAlone(requests, a.due.Lock)
	cancel()
	switch {
	case err == nil:
		a.record, a.read = record, true
		_ = w.remove(ctx, []*attempt{a}) // what failed was put back
	case a.due.Slow || !w.gate.open():
		w.unreadable(err, a)
	default:
		a.due.Slow = true
		w.readAlone(ctx, a)
	}
}

// read reads locks whole, together. Those that are large are read alone, and all of them if one may
// keep the others from being read. It returns the attempts that were read.
func (w *worker) read(ctx context.Context, due []*attempt) (batch []*attempt) {
	var locks []protocol.Lock
	for _, a := range due {
		if a.due.Slow || lockstore.Large(&a.due.Lock) {
			w.readAlone(ctx, a)
			continue
		}
		batch, locks = append(batch, a), append(locks, a.due.Lock)
	}
	if len(batch) == 0 {
		return nil
	}
	start := time.Now()
	requests, cancel := context.WithTimeout(w.requests, time.Duration(w.limit.Load()))
	defer cancel()
	records, err := w.Store.Read(requests, locks)
	w.limit.Store(int64(max(readTimeout, min(2*time.Since(start), w.Store.RequestTimeout))))
	if err != nil && !w.gate.open() {
		w.unreadable(err, batch...)
		return nil // the gate keeps the worker from others
	}
	read := batch[:0]
	for i, a := range batch {
		if err != nil || records[i].Unread() {
			w.readAlone(ctx, a)
			continue
		}
		a.record, a.read = records[i], true
		read = append(read, a)
	}
	return read
}

// unreadable ends attempts on locks that could not be read. If the gate is closed, the cause is etcd
// rather than the locks.
func (w *worker) unreadable(err error, batch ...*attempt) {
	reason := lockstore.Classify(err)
	if reason == lockstore.ReasonAmbiguous {
		reason = lockstore.ReasonUnreadable // a read has no effect that could be unknown
	}
	if w.gate.open() {
		w.fail(ends.unreadable, reason, err, batch...)
	} else {
		w.fail(ends.blocked, reason, err, batch...)
	}
}
