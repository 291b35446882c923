package reaper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// worker takes due locks, and takes each batch through its steps in a goroutine of its own.
type worker struct {
	*Reaper
	group *errgroup.Group
	// requests ends drainTimeout after the context of Run, so that a transaction in flight
	// can end and be reported.
	requests context.Context
	// sending are the slots of transactions in flight, and batches those of all batches: so the
	// next ones are read meanwhile.
	batches, sending *semaphore.Weighted
	alone, slow      lane
	// limit is the time limit of reads that keep others waiting: twice what the last batch took,
	// since a slow etcd must not switch to single reads.
	limit atomic.Int64
	// failures are the consecutive ones of etcd.
	failures atomic.Int64
}

func newWorker(requests context.Context, r *Reaper, group *errgroup.Group) *worker {
	w := &worker{
		Reaper: r, group: group, requests: requests,
		batches: semaphore.NewWeighted(2 * int64(r.Rules.Concurrency)), sending: semaphore.NewWeighted(int64(r.Rules.Concurrency)),
		alone: newLane(aloneSlots), slow: newLane(slowSlots),
	}
	w.limit.Store(int64(readTimeout))
	return w
}

// run takes due locks until ctx is done, and only while the gate is open.
func (w *worker) run(ctx context.Context) error {
	for w.batches.Acquire(ctx, 1) == nil {
		select {
		case <-w.Source.Due():
		case <-ctx.Done():
		}
		if w.gate.wait(ctx) != nil {
			return nil
		}
		history := w.gate.seen() // first: what is taken may be of a later one
		due, err := w.Source.Take(ctx, w.Rules.BatchSize)
		if err != nil {
			return err // Run returns nil where ctx is done
		}
		w.removing.Add(1)
		w.group.Go(func() error {
			defer w.batches.Release(1)
			defer w.removing.Add(-1)
			w.walk(ctx, history, due)
			return nil
		})
	}
	return nil
}

// pace waits after an error of etcd, the locks of which were put back without a delay.
func (w *worker) pace(ctx context.Context, err error) {
	if err == nil {
		w.failures.Store(0)
		return
	}
	w.Sleep(ctx, backoff(int(w.failures.Add(1)), maxBackoff))
}

// walk takes a batch from Take to its outcome: verdicts, read, then the steps of remove. The probe that these
// wait for begins together with the read.
func (w *worker) walk(ctx context.Context, history int, taken []table.View) {
	batch, lead := make([]*attempt, len(taken)), w.Probe.Lead()
	for i, d := range taken {
		batch[i] = &attempt{due: d, history: history, lead: lead}
	}
	due, soon := w.judge(batch, lead)
	if len(due)+len(soon) > 0 {
		w.Probe.Begin()
	}
	batch = w.read(ctx, append(due, soon...))
	if len(batch) > 0 && w.sending.Acquire(ctx, 1) == nil {
		defer w.sending.Release(1)
		w.pace(ctx, w.remove(ctx, batch)) // with the slot: a failing etcd gets no more than that
	}
}

// remove takes attempts that were read to their outcome: verdicts, a probe, the log, verdicts again, one
// transaction. It does so at once for the locks that are due, and then for those that are within
// the lead.
func (w *worker) remove(ctx context.Context, batch []*attempt) error {
	if w.rate.WaitN(ctx, len(batch)) != nil {
		return nil // ctx is done: WaitN has no other error, as a batch never exceeds the burst
	}
	var errs []error
	lead := batch[0].lead
	for start := time.Now(); ; {
		due, soon := w.judge(batch, lead-time.Since(start))
		due, err := w.confirm(ctx, due)
		errs = append(errs, err, w.send(slices.DeleteFunc(due, w.stop)))
		if len(soon) == 0 || ctx.Err() != nil {
			return errors.Join(errs...) // where ctx is done another replica removes the rest
		}
		first := slices.MinFunc(soon, func(a, b *attempt) int { return int(a.verdict.Remaining - b.verdict.Remaining) })
		w.Sleep(ctx, first.verdict.Remaining)
		batch = soon
	}
}

// confirm waits for the probes that removals need, and returns the attempts on locks that are still due after
// what these have shown.
func (w *worker) confirm(ctx context.Context, batch []*attempt) ([]*attempt, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	last := slices.MaxFunc(batch, func(a, b *attempt) int { return a.needs.Compare(b.needs) })
	ctx, cancel := context.WithTimeout(ctx, w.Rules.MinGrace())
	defer cancel()
	err := w.Probe.Await(ctx, last.needs)
	due, _ := w.judge(batch, 0)
	if err != nil {
		w.end(ends.unconfirmed, due...)
		return nil, fmt.Errorf("no probe has shown that locks can be renewed: %w", err)
	}
	return due, nil
}

// judge makes the verdicts on a batch. It returns the attempts on locks that are due, and those on
// locks that are within a while, and ends the others. With the gate closed it ends all.
func (w *worker) judge(batch []*attempt, within time.Duration) (due, soon []*attempt) {
	open := w.gate.open() // first, so that the verdicts include an outage that has ended since
	for _, a := range batch {
		a.verdict, a.needs = w.decide(a)
		switch v := a.verdict; {
		case !open, a.history != w.gate.seen():
			w.end(ends.held, a)
		case a.read && a.modified():
			w.end(ends.modified, a)
		case v.Action == verdict.Remove, v.Action == verdict.Report:
			due = append(due, a)
		case v.Action == verdict.Wait && v.Remaining <= within:
			soon = append(soon, a)
		case v.Action == verdict.Wait:
			w.end(ends.early, a)
		case v.Reason == verdict.ByBrake:
			w.end(ends.braked, a)
		default:
			w.end(ends.kept, a)
		}
	}
	return due, soon
}

// decide makes the verdict on the lock as it was read, or as it was taken. It also returns when the probe must have
// begun, at the earliest, that the removal needs: the lead before the lock came due, and when removals were last
// allowed.
func (w *worker) decide(a *attempt) (v verdict.Verdict, needs time.Time) {
	d := a.due
	if a.read {
		d.Lock = a.record.Lock
	}
	v = w.Verdict(d)
	needs = time.Now().Add(v.Due.Sub(v.Now) - a.lead)
	if opened := w.gate.since(); opened.After(needs) {
		needs = opened
	}
	return v, needs
}

// modified reports whether the lock that was read differs from the one that was taken, or has keys
// that are newer than the table, or a holder whose last write is older: etcd was restored, which the watch has yet to show.
func (a *attempt) modified() bool {
	return a.record.Keys == 0 || a.record.Token != a.due.Token || a.record.Revision > a.due.Revision ||
		a.record.UUID() != a.due.UUID() || a.record.AutoUnlockText() != a.due.AutoUnlockText() ||
		a.record.Token != 0 && a.record.Written < a.due.Written
}

// stop announces an attempt. It reports whether the attempt ended by that and must not be sent.
func (w *worker) stop(a *attempt) bool {
	report := a.verdict.Action == verdict.Report
	msg := api.LogRemoving
	if report {
		msg = api.LogWouldRemove
	}
	if !report && !lockstore.Fits(a.record) {
		w.fail(ends.tooLarge, lockstore.ReasonTooLarge, lockstore.ErrTooLarge, a)
		return true
	}
	if err := w.announce(w.requests, msg, a); err != nil {
		w.fail(ends.unlogged, lockstore.ReasonUnlogged, err, a)
		return true
	}
	if report {
		w.end(ends.would, a)
		return true
	}
	w.tally.begin(a)
	return false
}

// send removes announced locks in one transaction. If they do not fit, or if etcd refuses them
// because of one lock, it halves the batch until that lock is alone.
func (w *worker) send(batch []*attempt) error {
	if len(batch) == 0 {
		return nil
	}
	if !lockstore.Fits(records(batch)...) { // one alone does: see stop
		return w.halve(batch)
	}
	batch, terms := w.stillDue(batch)
	if len(batch) == 0 {
		return nil
	}
	deleted, revision, err := w.Store.Delete(w.requests, terms, records(batch)...)
	if errors.Is(err, lockstore.ErrWithdrawn) {
		w.Sleep(w.requests, updateInterval) // until the watch shows why; only then others may take them
		w.end(ends.overtaken, batch...)
		return nil
	}
	if err != nil {
		return w.sendFailed(batch, err)
	}
	for i, a := range batch {
		if a.deleted, a.revision = deleted[i], revision; a.deleted == 0 {
			w.end(ends.lost, a)
			continue
		}
		w.recorder.add(w.count(a))
		w.end(ends.won, a)
	}
	return nil
}

// stillDue makes the verdicts again right before a transaction is sent, since the previous
// transaction may have taken long. It withdraws the attempts on locks that must not be removed now. It also
// returns the terms of the transaction: that the gate stays open, and no pause is newer than those that these
// verdicts knew.
func (w *worker) stillDue(batch []*attempt) (due []*attempt, terms lockstore.Terms) {
	open := w.gate.open() // first, as in judge
	opened := w.gate.since()
	terms.Open = func() bool { return w.gate.open() && w.gate.since().Equal(opened) }
	terms.Pauses = w.Pauses.Newest()
	return slices.DeleteFunc(batch, func(a *attempt) bool {
		good := w.Probe.Good() // first, so that the verdict includes the outage that it has ended
		v, needs := w.decide(a)
		withdraw := !open || a.history != w.gate.seen() || v.Action != verdict.Remove || good.Before(needs)
		if withdraw {
			w.end(ends.withdrawn, a)
		}
		return withdraw
	}), terms
}

// sendFailed handles the error of a transaction. It returns the error if its cause is etcd rather
// than a single lock.
func (w *worker) sendFailed(batch []*attempt, err error) error {
	switch reason := lockstore.Classify(err); {
	case reason.OfOneKey() && len(batch) > 1:
		return w.halve(batch)
	case reason.OfOneKey():
		w.fail(ends.refused, reason, err, batch...)
		return nil
	case reason == lockstore.ReasonAmbiguous:
		w.fail(ends.ambiguous, reason, err, batch...)
	default:
		w.fail(ends.failed, reason, err, batch...)
	}
	return err
}

func (w *worker) halve(batch []*attempt) error {
	half := len(batch) / 2
	return errors.Join(w.send(batch[:half]), w.send(batch[half:]))
}

func records(batch []*attempt) []lockstore.Record {
	all := make([]lockstore.Record, len(batch))
	for i, a := range batch {
		all[i] = a.record
	}
	return all
}
