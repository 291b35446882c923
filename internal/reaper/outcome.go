package reaper

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// attempt is one try to remove one lock: as it was taken, as it was then read, and its outcome.
type attempt struct {
	due     table.View
	record  lockstore.Record
	verdict verdict.Verdict
	// lead is that of the probe when the lock was taken, and needs when the probe must have begun, at the
	// earliest, that the removal waits for.
	lead  time.Duration
	needs time.Time
	// history is the number of the history of etcd in which the lock was taken.
	history int
	// deleted is the number of keys that the transaction deleted, at its revision.
	deleted, revision int64
	// alone reports that no worker waits before the next try. read reports that record is set.
	alone, read bool
	// reason and err are those of a failure.
	reason lockstore.Reason
	err    error
	// answered is set if the transaction deleted the lock, and gone is the event of its deletion;
	// nil before it came. The tally guards both.
	answered bool
	gone     *table.Gone
	// ended is when it ended without an answer. presumed reports that it is taken to have deleted the lock all the
	// same.
	ended    time.Time
	presumed bool
}

type end struct {
	level   slog.Level
	message string // "" is not logged
	// outcome reports whether the removal was announced: then the line is kept until it can be
	// written. Otherwise there is one line for all locks that end so together.
	outcome bool
	count   func(*Stats, *attempt)
	// again returns after how long the lock is due again.
	again func(*attempt) time.Duration
}

// ends are all the ways in which an attempt ends.
var ends = struct {
	held, early, kept, braked, modified, crowded                end // before the lock is read
	unreadable, blocked, unconfirmed, tooLarge, unlogged, would end // before anything is sent
	withdrawn, overtaken, ambiguous, failed, refused, lost, won end // after the removal was announced
	presumed                                                    end // after it was ambiguous
}{
	held:     end{again: after(0)},
	early:    end{again: untilDue},
	kept:     end{again: after(table.UntilModified)},
	braked:   end{again: after(table.WhileBraked)},
	modified: end{count: conflict, again: atOnce}, // released or renewed: the watch will show it
	crowded:  end{again: after(aloneRetry)},

	unreadable:  end{slog.LevelWarn, api.LogCannotRead, false, failure, doubling(refusedBackoff)},
	blocked:     end{slog.LevelWarn, api.LogCannotRead, false, failure, after(0)}, // by etcd, not by the lock
	unconfirmed: end{again: after(0)},                                             // the worker waits
	tooLarge:    end{slog.LevelError, api.LogCannotRemove, false, failure, after(refusedBackoff)},
	unlogged:    end{slog.LevelError, api.LogCannotLog, false, failure, doubling(maxBackoff)},
	would:       end{count: wouldRemove, again: after(table.UntilModified)},

	withdrawn: end{slog.LevelInfo, api.LogWithdrawn, true, nil, after(0)},
	overtaken: end{slog.LevelInfo, api.LogWithdrawn, true, nil, doubling(time.Second)}, // by a pause not seen yet, or a hold that began at departure
	ambiguous: end{slog.LevelWarn, api.LogAmbiguous, true, failure, afterFailure},
	failed:    end{slog.LevelWarn, api.LogRefused, true, failure, afterFailure},
	refused:   end{slog.LevelError, api.LogCannotRemove, true, failure, after(refusedBackoff)},
	lost:      end{slog.LevelInfo, api.LogConflict, true, conflict, atOnce},
	won:       end{slog.LevelInfo, api.LogRemoved, true, removed, afterRemoval},
	presumed:  end{level: slog.LevelInfo, message: api.LogPresumed, count: presumed},
}

func conflict(s *Stats, _ *attempt)    { s.Conflicts++ }
func wouldRemove(s *Stats, _ *attempt) { s.Would++ }
func failure(s *Stats, a *attempt)     { s.Failures[a.reason]++ }
func removed(s *Stats, a *attempt)     { s.Removed[a.verdict.Trigger]++ }
func presumed(s *Stats, _ *attempt)    { s.Removed[verdict.Presumed]++ }

// The backoff between attempts doubles from the minimum to the maximum, with jitter. Attempts
// continue as long as a lock is due.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// refusedBackoff applies if the cause is the lock, the role of the daemon or a limit of etcd,
	// which an operator has to correct. Each attempt logs the whole record. A lock that cannot be
	// read backs off up to it, since it keeps a slot from others.
	refusedBackoff = time.Minute
	// leaderInterval is how often a standby looks again at a lock that is due but waits for the
	// leader: it may lead by now. Others that were taken too early are put back for as long.
	leaderInterval = time.Second
	// never is for a lock that is not put back: the table drops it when the watch shows the deletion.
	never = table.WhileBraked - 1
)

func backoff(attempts int, longest time.Duration) time.Duration {
	d := min(minBackoff<<min(max(attempts-1, 0), 10), longest)
	return d/2 + rand.N(d)
}

func after(d time.Duration) func(*attempt) time.Duration {
	return func(*attempt) time.Duration { return d }
}

func doubling(longest time.Duration) func(*attempt) time.Duration {
	return func(a *attempt) time.Duration {
		a.due.Attempts++
		return backoff(a.due.Attempts, longest)
	}
}

// atOnce is for a lock that was written concurrently. Of what that may be only a renewal or a release ends the matter, and
// not the answer to a question: the first further attempt does not wait.
func atOnce(a *attempt) time.Duration {
	if a.due.Attempts++; a.due.Attempts == 1 {
		return 0
	}
	return backoff(a.due.Attempts-1, maxBackoff)
}

// untilDue is for a lock that has to wait for longer than the lead: a standby may lead soon, and after a step of our clock
// the table, which computes due again, may have another one.
func untilDue(a *attempt) time.Duration {
	v := a.verdict
	if v.Reason == verdict.ByPause {
		return table.WhilePaused
	}
	wait := min(v.Remaining, leaderInterval)
	if wait <= a.lead {
		return a.lead // it was waited for, but the clock did not get there
	}
	return max(wait-a.lead, time.Millisecond) // the table may know another lead
}

// afterFailure is for a temporary failure of etcd. For a lock that was read alone no worker waits.
func afterFailure(a *attempt) time.Duration {
	if !a.alone {
		return 0 // the worker waits
	}
	a.due.Slow = true
	return doubling(maxBackoff)(a)
}

// afterRemoval puts an orphan back: a key that was written meanwhile may be left, and no event tells.
func afterRemoval(a *attempt) time.Duration {
	if a.due.Token == 0 {
		return maxBackoff
	}
	return never
}

func (w *worker) fail(e end, reason lockstore.Reason, err error, batch ...*attempt) {
	for _, a := range batch {
		a.reason, a.err = reason, err
	}
	w.end(e, batch...)
}

// end ends attempts. It logs first, so that whoever sees the count finds the line.
func (w *worker) end(e end, batch ...*attempt) {
	for i, a := range batch {
		if e.outcome {
			w.logOutcome(w.requests, e, a)
		} else if e.message != "" && i == 0 {
			w.Logger.LogAttrs(w.requests, e.level, e.message, append(a.attrs(), slog.Int("locks", len(batch)))...)
		}
		if done := w.tally.end(a, e.count); done != nil {
			w.confirmed(w.requests, done)
		}
		if delay := e.again(a); delay != never {
			// The only error is that the table has stopped; then the lock need not be put back.
			_ = w.Source.Postpone(w.requests, a.due, delay)
		}
	}
}

func (r *Reaper) logOutcome(ctx context.Context, e end, a *attempt) {
	line := slog.NewRecord(time.Now(), e.level, e.message, 0)
	line.AddAttrs(append(a.attrs(), slog.Int64("keys_deleted", a.deleted), slog.Int64("revision", a.revision))...)
	if !r.journal.conclude(ctx, line) {
		r.tally.update(func(s *Stats) { s.Failures[lockstore.ReasonUnlogged]++ })
	}
}

// attrs are those of each line about an attempt.
func (a *attempt) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("lock", protocol.Clip([]byte(a.due.Name), protocol.MaxName)), slog.String("uuid", a.record.LoggedUUID())}
	if a.err != nil {
		attrs = append(attrs, slog.String("reason", string(a.reason)), slog.Any("error", a.err))
	}
	return attrs
}

// announce logs the verdict with the whole record that it was made on. It returns the error of the
// log, which slog.Logger does not.
func (w *worker) announce(ctx context.Context, msg string, a *attempt) error {
	if !w.journal.handler.Enabled(ctx, slog.LevelInfo) {
		return nil // by configuration, which allows that where nothing is removed
	}
	r := slog.NewRecord(time.Now(), slog.LevelInfo, msg, 0)
	r.AddAttrs(slog.String("lock", a.record.LoggedName()), slog.Any("verdict", a.verdict), slog.Any("record", a.record))
	return w.journal.announce(ctx, r)
}

// journal writes the log lines about removals. An outcome that cannot be written is kept until it
// can be, and no removal is announced before.
type journal struct {
	handler slog.Handler
	mu      sync.Mutex
	kept    []slog.Record
}

const (
	// maxKept bounds the outcomes that are kept. What is sent without an outcome is much less.
	maxKept = 10_000
	// journalRetry is how often they are tried again.
	journalRetry = time.Second
)

func (j *journal) announce(ctx context.Context, r slog.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.flush(ctx); err != nil {
		return err
	}
	return j.handler.Handle(ctx, r)
}

// conclude writes an outcome, or keeps it. It reports whether it was written.
func (j *journal) conclude(ctx context.Context, r slog.Record) bool {
	if !j.handler.Enabled(ctx, r.Level) {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.flush(ctx) == nil && j.handler.Handle(ctx, r) == nil {
		return true
	}
	if len(j.kept) < maxKept {
		j.kept = append(j.kept, r)
	}
	return false
}

// flush writes what was kept. The caller holds the mutex.
func (j *journal) flush(ctx context.Context) error {
	for len(j.kept) > 0 {
		if err := j.handler.Handle(ctx, j.kept[0]); err != nil {
			return err
		}
		j.kept = j.kept[1:]
	}
	return nil
}

// run tries to write what was kept, until ctx is done.
func (j *journal) run(ctx context.Context) error {
	return every(ctx, journalRetry, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		_ = j.flush(ctx) // the next call tries again
	})
}
