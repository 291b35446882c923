package reaper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// Records writes the records of removals: a records.Writer. Write returns how many of them, the first ones, it has
// written, and whether etcd may take the rest later. It may be repeated.
type Records interface {
	Write(ctx context.Context, removed []api.Forced) (written int, later bool, err error)
}

const (
	// recordBatch is the maximum number of records in one transaction: none takes long, since a lock may come due
	// meanwhile.
	recordBatch = 64
	// recordBytes is the maximum size of the removals that wait for their records. The ledger has most of them, too.
	recordBytes = ledgerBytes
	// idleInterval is how often the recorder looks whether removals are due, recordRetry how long it waits after
	// etcd did not answer.
	idleInterval, recordRetry = 10 * time.Millisecond, time.Second
)

// recorder leaves records of removals in etcd, when nothing is to be removed. It never delays a removal: what it
// cannot write is dropped and counted.
type recorder struct {
	*Reaper
	wake chan struct{}

	mu    sync.Mutex
	queue []api.Forced
	bytes int
	// excess is the number of removals that found no room since the last look.
	excess int
	// failed reports whether the last record was dropped, which was said. Only the goroutine of run uses it.
	failed bool
}

// add takes a removal, of which nothing changes any more.
func (r *recorder) add(removed api.Forced) {
	if r.Records == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := sizeOf(&removed); r.bytes+n <= recordBytes {
		r.queue, r.bytes = append(r.queue, removed), r.bytes+n
	} else {
		r.excess++
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run writes records until ctx is done. Then requests has some time for the rest.
func (r *recorder) run(ctx, requests context.Context) {
	for r.await(ctx) {
		if !r.write(requests) {
			r.Sleep(ctx, recordRetry)
		}
	}
}

// flush writes the rest, and drops it where that fails.
func (r *recorder) flush(requests context.Context) {
	for len(r.first()) > 0 {
		if !r.write(requests) {
			left := len(r.queue) // no worker adds any
			r.forget(left)
			r.drop(left, errors.New("the daemon stopped"))
		}
	}
}

// await blocks until there are records to write and no removal is due. It returns false if ctx is done.
func (r *recorder) await(ctx context.Context) bool {
	for ctx.Err() == nil {
		if len(r.first()) == 0 {
			select {
			case <-r.wake:
			case <-ctx.Done():
			}
			continue
		}
		if r.removing.Load() == 0 { // workers take what is due at once
			return true
		}
		r.Sleep(ctx, idleInterval)
	}
	return false
}

// first returns the removals whose records are to be written next.
func (r *recorder) first() []api.Forced {
	r.mu.Lock()
	excess, first := r.excess, r.queue[:min(len(r.queue), recordBatch)]
	r.excess = 0
	r.mu.Unlock() // the log may block: not those who add
	if excess > 0 {
		r.drop(excess, errors.New("more removals than records can be written"))
	}
	return first
}

// write writes some records. It reports false if etcd may take them later.
func (r *recorder) write(requests context.Context) bool {
	batch := r.first()
	written, later, err := r.Records.Write(requests, batch)
	r.forget(written)
	if written > 0 {
		r.failed = false
	}
	if err == nil || later {
		return err == nil
	}
	r.forget(len(batch) - written)
	r.drop(len(batch)-written, err)
	return true
}

// forget takes the first n removals out of the queue.
func (r *recorder) forget(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.queue[:n] {
		r.bytes -= sizeOf(&r.queue[i])
	}
	clear(r.queue[:n])
	r.queue = r.queue[n:]
}

// drop counts records that are not written. It logs the first ones since the last that was.
func (r *recorder) drop(n int, err error) {
	r.tally.update(func(s *Stats) { s.RecordsDropped += uint64(n) })
	if !r.failed {
		r.Logger.Warn(api.LogRecordsDropped, "error", err)
	}
	r.failed = true
}
