package reaper

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// worker takes due locks and removes them, one transaction at a time. While a transaction is in
// flight, it reads the next locks.
type worker struct {
	*Reaper
	// requests ends drainTimeout after the context of Run, so that a transaction in flight
	// can end and be reported.
	requests context.Context
	// alone and slow are the queues of the locks that are read alone, shared by all workers.
	// Those in slow could not be read within the limit.
	alone, slow chan table.Due
	// limit is the time limit of reads that keep others waiting: twice what the last batch took,
	// since a slow etcd is no reason to read locks alone.
	limit atomic.Int64
}

// attempt is one try to remove one lock: as it was taken, as it was then read, and
// what became of it.
type attempt struct {
	due     table.Due
	record  lockstore.Record
	verdict verdict.Verdict
	result  lockstore.Result
	goneAt  time.Time
	// alone: no worker waits before the next try.
	alone bool
}

func (w *worker) run(ctx context.Context) error {
	next := make(chan []*attempt)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.prepare(ctx, next) })
	g.Go(func() error { return w.remove(ctx, next) })
	return g.Wait()
}

// prepare takes due locks and reads them, one batch ahead of remove.
func (w *worker) prepare(ctx context.Context, next chan<- []*attempt) error {
	for failures := 0; ; {
		if w.gate.wait(ctx) != nil {
			return nil
		}
		due, err := w.Source.Take(ctx, w.BatchSize)
		if err != nil {
			return err // Run returns nil where ctx is done
		}
		batch, err := w.read(w.divert(w.keepDue(due, w.gate.open())))
		select {
		case next <- batch:
		case <-ctx.Done():
			return nil
		}
		failures = w.pauseAfter(ctx, failures, err)
	}
}

// remove removes the batches that prepare has read.
func (w *worker) remove(ctx context.Context, next <-chan []*attempt) error {
	for failures := 0; ; {
		select {
		case batch := <-next:
			failures = w.pauseAfter(ctx, failures, w.handle(ctx, batch))
		case <-ctx.Done():
			return nil
		}
	}
}

// keepDue puts back the locks that are not due yet because of outages or the standby delay, so
// that they are not read. If the gate is not open, it puts back all locks.
func (w *worker) keepDue(due []table.Due, open bool) []table.Due {
	return slices.DeleteFunc(due, func(d table.Due) bool {
		switch v := w.Verdict(d); {
		case !open:
			w.postpone(d, 0)
		case v.Action == verdict.Leave:
			w.postpone(d, table.UntilModified)
		case v.Action == verdict.Wait && v.Remaining > Lead:
			w.await(d, v)
		default:
			return false
		}
		return true
	})
}

// Lead is how long before due locks are taken, so that they have been read when they are due.
const Lead = 10 * time.Millisecond

// handle makes the verdicts on a batch and removes its locks when they are due: first those that
// are due already, together, and then those that are due within Lead.
func (w *worker) handle(ctx context.Context, batch []*attempt) error {
	var errs []error
	if len(batch) > 0 && w.rate.WaitN(ctx, len(batch)) != nil {
		return nil // ctx is done: WaitN has no other error, as a batch never exceeds the burst
	}
	for start := time.Now(); len(batch) > 0; {
		if !w.gate.open() {
			for _, a := range batch {
				w.postpone(a.due, 0)
			}
			return errors.Join(errs...)
		}
		due, soon, wait := w.decideAll(batch, Lead-time.Since(start))
		errs = append(errs, w.send(due))
		if batch = soon; len(batch) > 0 {
			w.Sleep(ctx, wait)
		}
		if ctx.Err() != nil {
			break // another replica removes the remaining locks
		}
	}
	return errors.Join(errs...)
}

// decideAll makes the verdicts of a batch. It returns the attempts to send now, those that are due
// within maxWait, and the time until the first of these is due.
func (w *worker) decideAll(batch []*attempt, maxWait time.Duration) (due, soon []*attempt, wait time.Duration) {
	wait = Lead
	for _, a := range batch {
		switch w.decide(a, maxWait) {
		case verdict.Remove:
			due = append(due, a)
		case verdict.Wait:
			soon = append(soon, a)
			wait = min(wait, a.verdict.Remaining)
		}
	}
	return due, soon, wait
}

// decide makes the verdict on one lock. It returns Remove if the attempt must be sent, Wait if the
// lock is due within maxWait, and Leave if it put the lock back.
func (w *worker) decide(a *attempt, maxWait time.Duration) verdict.Action {
	if modified(a) {
		// The lock was released or renewed; the table will learn it from the watch.
		w.tally.conflict()
		w.retry(a.due, maxBackoff)
		return verdict.Leave
	}
	a.verdict = w.verdictOn(a)
	switch a.verdict.Action {
	case verdict.Remove:
		if !lockstore.Fits(a.record) {
			w.refused(a, lockstore.ReasonTooLarge, lockstore.ErrTooLarge)
			return verdict.Leave
		}
		if err := w.announce(api.LogRemoving, a); err != nil {
			w.unlogged(a, err)
			return verdict.Leave
		}
		w.tally.begin(a)
		return verdict.Remove
	case verdict.Report:
		if err := w.announce(api.LogWouldRemove, a); err != nil {
			w.unlogged(a, err)
			return verdict.Leave
		}
		w.tally.would()
		w.postpone(a.due, table.UntilModified)
	case verdict.Wait:
		if a.verdict.Remaining <= maxWait {
			return verdict.Wait
		}
		w.await(a.due, a.verdict)
	default:
		w.postpone(a.due, table.UntilModified)
	}
	return verdict.Leave
}

// verdictOn returns the verdict on the lock as it was read.
func (w *worker) verdictOn(a *attempt) verdict.Verdict {
	d := a.due
	d.Lock = a.record.Lock
	return w.Verdict(d)
}

// modified reports whether the lock that was read differs from the one that was taken, or has keys
// that are newer than the table.
func modified(a *attempt) bool {
	return a.record.Keys == 0 || a.record.Token != a.due.Token || a.record.Revision > a.due.Revision ||
		a.record.UUID() != a.due.UUID() || a.record.AutoUnlockText() != a.due.AutoUnlockText()
}

// leaderInterval is how often a standby looks at a lock again that is due, but waits for the leader:
// it may lead by now.
const leaderInterval = time.Second

// await puts back a lock that has to wait for longer than Lead. A standby looks at it again earlier.
func (w *worker) await(d table.Due, v verdict.Verdict) {
	if v.Reason == verdict.ByPause {
		w.postpone(d, table.WhilePaused)
		return
	}
	wait := v.Remaining
	if !v.Leader {
		wait = min(wait, max(wait-v.StandbyDelay, leaderInterval))
	}
	w.postpone(d, max(wait-Lead, Lead))
}

func (w *worker) postpone(d table.Due, delay time.Duration) {
	// The only error is that the table has stopped; then the lock need not be put back.
	_ = w.Source.Postpone(w.requests, d, delay)
}

// retry puts back a lock after a failed attempt.
func (w *worker) retry(d table.Due, longest time.Duration) {
	d.Attempts++
	w.postpone(d, backoff(d.Attempts, longest))
}

// pauseAfter sleeps after an error of etcd. The locks were put back without a delay. It returns
// the number of consecutive errors.
func (w *worker) pauseAfter(ctx context.Context, failures int, err error) int {
	if err == nil {
		return 0
	}
	w.Sleep(ctx, backoff(failures+1, maxBackoff))
	return failures + 1
}

// The backoff between attempts doubles from the minimum to the maximum, with jitter. Attempts
// continue as long as a lock is due.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// refusedBackoff applies if the cause is the lock, the role of the daemon or a limit of etcd, which
// people have to correct. Each attempt logs the whole record. A lock that cannot be read backs off
// up to it, since it keeps a slot from others.
const refusedBackoff = time.Minute

func backoff(attempts int, longest time.Duration) time.Duration {
	d := min(minBackoff<<min(max(attempts-1, 0), 10), longest)
	return d/2 + rand.N(d)
}
