package reaper

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// worker takes candidates and removes them, one transaction at a time.
type worker struct {
	*Reaper
	// requests outlives the worker's own context a little, so that a
	// transaction under way may end and be reported.
	requests context.Context
	failures int
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
	for {
		candidates, err := w.Source.Take(ctx, w.BatchSize)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := w.handle(candidates); err == nil {
			w.failures = 0
			continue
		}
		// It is etcd that fails, not these locks: they go back at once, and
		// this worker pauses.
		w.failures++
		select {
		case <-time.After(backoff(w.failures)):
		case <-ctx.Done():
			return nil
		}
	}
}

// Backoff between tries, doubled from the least to the most, with jitter. It
// goes on for as long as a lock is due.
const (
	leastBackoff = 100 * time.Millisecond
	mostBackoff  = 5 * time.Second
)

func backoff(tries int) time.Duration {
	d := min(leastBackoff<<min(max(tries-1, 0), 10), mostBackoff)
	return d/2 + rand.N(d)
}

// handle reads, decides on and removes candidates. An error is one of etcd, not
// of a single lock.
func (w *worker) handle(candidates []Candidate) error {
	records, err := w.read(w.requests, candidates)
	if err != nil {
		return w.unreadable(candidates, err)
	}
	var due []*attempt
	for i := range candidates {
		if a := w.decide(candidates[i], records[i]); a != nil {
			due = append(due, a)
		}
	}
	return w.send(due)
}

// unreadable is for candidates that could not be read together. As in send,
// they are halved until a culprit stands alone.
func (w *worker) unreadable(candidates []Candidate, err error) error {
	reason := classify(err)
	if half := len(candidates) / 2; half > 0 && reason.halvable() {
		return errors.Join(w.handle(candidates[:half]), w.handle(candidates[half:]))
	}
	if reason == ReasonAmbiguous {
		reason = ReasonUnreadable // nothing was sent that could have done anything
	}
	w.Logger.LogAttrs(w.requests, slog.LevelWarn, "cannot read locks that are due",
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
		return nil
	}
	return err
}

// decide makes the verdict on one lock and returns what is to be sent, if
// anything is.
func (w *worker) decide(c Candidate, rec record) *attempt {
	if changed(&c, &rec) {
		// Released or renewed since: the watch is about to tell the source.
		w.tally.conflict()
		w.postpone(&c, backoff(c.Attempts+1))
		return nil
	}
	now := w.Now()
	a := &attempt{record: rec, candidate: c, verdict: Decide(w.Rules.inputs(&rec.Lock, c.Due, now))}
	switch a.verdict.Action {
	case Remove:
		if a.removal = newRemoval(w.Layout, &rec.Lock, rec.spans); len(rec.spans) == 0 || a.removal.cost() > maxTxnOps {
			w.refused(a, ReasonTooLarge, nil)
			return nil
		}
		w.announce("removing a lock that is due", a)
		w.tally.begin(a)
		return a
	case Report:
		w.announce("would remove a lock that is due (dry run)", a)
		w.tally.would()
		w.postpone(&c, Park)
	case Wait:
		w.postpone(&c, max(leastBackoff, a.verdict.Due.Sub(now)))
	default:
		w.postpone(&c, Park)
	}
	return nil
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
