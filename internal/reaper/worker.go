package reaper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

// worker takes candidates and removes them, one transaction at a time. While
// one is sent, the next candidates are read.
type worker struct {
	*Reaper
	// requests outlives the worker's own context a little, so that a
	// transaction under way may end and be reported.
	requests context.Context
}

// prepared is a candidate with what etcd holds of it.
type prepared struct {
	candidate Candidate
	record    record
}

// attempt is one try to remove one lock.
type attempt struct {
	record
	candidate Candidate
	verdict   Verdict
	removal   removal
	result    result
	goneAt    time.Time
}

func (w *worker) run(ctx context.Context) error {
	next := make(chan []prepared)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.prepare(ctx, next) })
	g.Go(func() error { return w.remove(ctx, next) })
	return g.Wait()
}

// prepare takes candidates and reads them, one batch ahead.
func (w *worker) prepare(ctx context.Context, next chan<- []prepared) error {
	for failures := 0; ; {
		if w.gate.pass(ctx) != nil {
			return nil
		}
		candidates, pressure, err := w.Source.Take(ctx, w.BatchSize)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		batch, err := w.readAll(w.sift(candidates, w.gate.press(pressure)))
		select {
		case next <- batch:
		case <-ctx.Done():
			return nil
		}
		failures = pauseAfter(ctx, failures, err)
	}
}

// sift puts back what is not due yet after all, before it is read: outages add
// to a deadline, and a standby waits for its leader. While the gate is shut that
// is everything.
func (w *worker) sift(candidates []Candidate, open bool) []Candidate {
	return slices.DeleteFunc(candidates, func(c Candidate) bool {
		switch v := w.verdict(&c, &c.Lock); {
		case !open:
			w.postpone(&c, 0)
		case v.Action == Leave:
			w.postpone(&c, Park)
		case v.Action == Wait && v.Left > Lead:
			w.postpone(&c, v.Left-Lead)
		default:
			return false
		}
		return true
	})
}

// remove removes what was prepared.
func (w *worker) remove(ctx context.Context, next <-chan []prepared) error {
	for failures := 0; ; {
		select {
		case batch := <-next:
			failures = pauseAfter(ctx, failures, w.handle(ctx, batch))
		case <-ctx.Done():
			return nil
		}
	}
}

// pauseAfter pauses after an error, which is one of etcd and not of the locks:
// those went back at once. It returns how many errors there were in a row.
func pauseAfter(ctx context.Context, failures int, err error) int {
	if err == nil {
		return 0
	}
	sleep(ctx, backoff(failures+1))
	return failures + 1
}

// Backoff between tries, doubled from the least to the most, with jitter. It
// goes on for as long as a lock is due.
const (
	leastBackoff = 100 * time.Millisecond
	mostBackoff  = 5 * time.Second
)

// refusedBackoff is for what lies in a lock, in our role or in etcd's limits:
// people have to mend it, and each try logs the whole record.
const refusedBackoff = time.Minute

func backoff(tries int) time.Duration {
	d := min(leastBackoff<<min(max(tries-1, 0), 10), mostBackoff)
	return d/2 + rand.N(d)
}

// readAll reads candidates. An error is one of etcd, not of a single lock.
func (w *worker) readAll(candidates []Candidate) ([]prepared, error) {
	records, err := w.store.read(w.requests, candidates)
	if err != nil {
		return w.unreadable(candidates, err)
	}
	batch := make([]prepared, len(candidates))
	for i := range candidates {
		batch[i] = prepared{candidates[i], records[i]}
	}
	return batch, nil
}

// Lead is how long before they are due locks may be handed to the reaper, so
// that they are read when the instant comes.
const Lead = 10 * time.Millisecond

// handle decides on locks and removes them, each when it is due: all those that
// are together, and then those that are soon.
func (w *worker) handle(ctx context.Context, batch []prepared) error {
	var errs []error
	if len(batch) > 0 && w.rate.WaitN(ctx, len(batch)) != nil {
		return nil // only ctx ends it: a batch is never larger than the burst
	}
	for start := time.Now(); len(batch) > 0; {
		if !w.gate.open() {
			for i := range batch {
				w.postpone(&batch[i].candidate, 0)
			}
			return errors.Join(errs...)
		}
		due, soon, wait := w.judge(batch, Lead-time.Since(start))
		errs = append(errs, w.send(due))
		if batch = soon; len(batch) > 0 {
			sleep(ctx, wait)
		}
		if ctx.Err() != nil {
			break // the locks that are left are the next replica's
		}
	}
	return errors.Join(errs...)
}

// judge makes the verdicts of a batch, and returns what is to be removed, what
// is due within the patience, and how long it is until the first of that.
func (w *worker) judge(batch []prepared, patience time.Duration) (due []*attempt, soon []prepared, wait time.Duration) {
	wait = Lead
	for _, p := range batch {
		a, left := w.decide(p.candidate, p.record, patience)
		switch {
		case a != nil:
			due = append(due, a)
		case left > 0:
			soon = append(soon, p)
			wait = min(wait, left)
		}
	}
	return due, soon, wait
}

// unreadable is for candidates that could not be read together. As in send,
// they are halved until a culprit stands alone.
func (w *worker) unreadable(candidates []Candidate, err error) ([]prepared, error) {
	reason := classify(err)
	if half := len(candidates) / 2; half > 0 && reason.halvable() {
		first, err1 := w.readAll(candidates[:half])
		second, err2 := w.readAll(candidates[half:])
		return append(first, second...), errors.Join(err1, err2)
	}
	if reason == ReasonAmbiguous {
		reason = ReasonUnreadable // nothing was sent that could have done anything
	}
	w.Logger.LogAttrs(w.requests, slog.LevelWarn, message.CannotRead,
		slog.Int("locks", len(candidates)), slog.String("lock", lock.Clip([]byte(candidates[0].Name), maxLogName)),
		slog.String("reason", string(reason)), slog.Any("error", err))
	for i := range candidates {
		w.tally.failed(reason)
		if reason.halvable() {
			w.postpone(&candidates[i], backoff(candidates[i].Attempts+1))
		} else {
			w.postpone(&candidates[i], 0)
		}
	}
	if reason.halvable() {
		return nil, nil
	}
	return nil, err
}

// decide makes the verdict on one lock and returns what is to be sent, if
// anything is, or how long is left, where that is within the patience.
func (w *worker) decide(c Candidate, rec record, patience time.Duration) (_ *attempt, left time.Duration) {
	if changed(&c, &rec) {
		// Released or renewed since: the watch is about to tell the source.
		w.tally.conflict()
		w.postpone(&c, backoff(c.Attempts+1))
		return nil, 0
	}
	a := &attempt{record: rec, candidate: c, verdict: w.verdict(&c, &rec.Lock)}
	switch a.verdict.Action {
	case Remove:
		if a.removal = newRemoval(w.Layout, &rec.Lock, rec.spans); len(rec.spans) == 0 || a.removal.cost() > maxTxnOps {
			w.refused(a, ReasonTooLarge, ErrTooLarge)
			return nil, 0
		}
		w.announce(message.Removing, a)
		w.tally.begin(a)
		return a, 0
	case Report:
		w.announce(message.WouldRemove, a)
		w.tally.would()
		w.postpone(&c, Park)
	case Wait:
		if left = a.verdict.Left; left <= patience {
			return nil, left
		}
		w.postpone(&c, max(left-Lead, Lead))
	default:
		w.postpone(&c, Park)
	}
	return nil, 0
}

// changed tells whether the lock is no longer the one that the source gave, or
// has keys newer than those the source has seen.
func changed(c *Candidate, rec *record) bool {
	return rec.Keys == 0 || rec.Token != c.Token || rec.Revision > c.Revision ||
		rec.UUID() != c.UUID() || rec.AutoUnlockText() != c.AutoUnlockText()
}

func (w *worker) postpone(c *Candidate, delay time.Duration) {
	// The only error is that the source has stopped, and then nothing is left
	// to be put back.
	_ = w.Source.Postpone(w.requests, c.Name, c.Token, delay)
}
