package reaper

import (
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// answered counts and logs the answer of a transaction for one lock.
func (w *worker) answered(a *attempt, res lockstore.Result) {
	a.result = res
	if res.Deleted == 0 {
		w.tally.end(a)
		w.tally.conflict()
		w.outcome(slog.LevelInfo, a, api.LogConflict)
		w.retry(a.due, maxBackoff)
		return
	}
	w.ledger.self(a)
	w.outcome(slog.LevelInfo, a, api.LogRemoved)
	w.confirmed(w.tally.done(a))
	if a.due.Token == 0 {
		w.postpone(a.due, maxBackoff) // a key that was written meanwhile may be left, and no event tells
	}
}

// withdraw ends an attempt that was announced but must not be sent.
func (w *worker) withdraw(a *attempt) {
	w.tally.end(a)
	w.outcome(slog.LevelInfo, a, api.LogWithdrawn)
	w.postpone(a.due, 0)
}

// failed ends an attempt after a temporary failure of etcd.
func (w *worker) failed(a *attempt, reason lockstore.Reason, err error) {
	w.tally.end(a)
	w.tally.failed(reason)
	msg := api.LogRefused
	if reason == lockstore.ReasonAmbiguous {
		msg = api.LogAmbiguous
	}
	w.outcome(slog.LevelWarn, a, msg, slog.String("reason", string(reason)), slog.Any("error", err))
	if a.alone {
		a.due.Slow = true
		w.retry(a.due, maxBackoff)
		return
	}
	w.postpone(a.due, 0) // the worker waits
}

// refused ends an attempt after a failure whose cause is the lock itself. The lock is tried again
// after refusedBackoff, since roles and limits may change.
func (w *worker) refused(a *attempt, reason lockstore.Reason, err error) {
	w.tally.end(a)
	w.tally.failed(reason)
	w.outcome(slog.LevelError, a, api.LogCannotRemove, slog.String("reason", string(reason)), slog.Any("error", err))
	w.postpone(a.due, refusedBackoff)
}

// outcome logs the outcome of an attempt.
func (w *worker) outcome(level slog.Level, a *attempt, msg string, more ...slog.Attr) {
	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.AddAttrs(append([]slog.Attr{
		slog.String("lock", a.record.LoggedName()),
		slog.String("uuid", a.record.LoggedUUID()),
		slog.Int64("keys_deleted", a.result.Deleted),
		slog.Int64("revision", a.result.Revision),
	}, more...)...)
	if !w.journal.conclude(w.requests, r) {
		w.tally.failed(lockstore.ReasonUnlogged)
	}
}

// unlogged is for a verdict whose record could not be written: nothing may be sent.
func (w *worker) unlogged(a *attempt, err error) {
	w.tally.failed(lockstore.ReasonUnlogged)
	w.Logger.LogAttrs(w.requests, slog.LevelError, api.LogCannotLog,
		slog.String("lock", a.record.LoggedName()), slog.String("uuid", a.record.LoggedUUID()), slog.Any("error", err))
	w.retry(a.due, maxBackoff)
}

// announce logs a verdict with the whole record that it was made on. It returns the
// error of the log, which slog.Logger does not.
func (w *worker) announce(msg string, a *attempt) error {
	if !w.journal.handler.Enabled(w.requests, slog.LevelInfo) {
		return nil // by configuration, which allows that where nothing is removed
	}
	r := slog.NewRecord(time.Now(), slog.LevelInfo, msg, 0)
	r.AddAttrs(slog.String("lock", a.record.LoggedName()), slog.Any("verdict", a.verdict), slog.Any("record", a.record))
	return w.journal.announce(w.requests, r)
}

func (w *worker) logUnreadable(due []table.Due, reason lockstore.Reason, err error) {
	w.Logger.LogAttrs(w.requests, slog.LevelWarn, api.LogCannotRead,
		slog.Int("locks", len(due)), slog.String("lock", protocol.Clip([]byte(due[0].Name), lockstore.MaxName)),
		slog.String("reason", string(reason)), slog.Any("error", err))
}
