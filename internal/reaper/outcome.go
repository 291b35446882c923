package reaper

import (
	"log/slog"
	"strconv"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/message"
)

// answered accounts for a transaction's answer for one lock.
func (w *worker) answered(a *attempt, res result) {
	a.result = res
	if res.deleted == 0 {
		w.tally.end(a)
		w.tally.conflict()
		w.outcome(slog.LevelInfo, a, message.Conflict)
		w.postpone(&a.candidate, backoff(a.candidate.Attempts+1))
		return
	}
	w.ledger.add(a)
	w.outcome(slog.LevelInfo, a, message.Removed)
	w.finish(w.tally.done(a))
}

// withdraw is for what was announced and must not be sent any more.
func (w *worker) withdraw(a *attempt) {
	w.tally.end(a)
	w.outcome(slog.LevelInfo, a, message.Withdrawn)
	w.postpone(&a.candidate, 0)
}

// failed is for a failure that is etcd's, and passes.
func (w *worker) failed(a *attempt, reason Reason, err error) {
	w.tally.end(a)
	w.tally.failed(reason)
	words := message.Refused
	if reason == ReasonAmbiguous {
		words = message.Ambiguous
	}
	w.outcome(slog.LevelWarn, a, words, slog.String("reason", string(reason)), slog.Any("error", err))
	w.postpone(&a.candidate, 0)
}

// refused is for a failure that lies in the lock itself. It is tried again, as
// roles and limits change.
func (w *worker) refused(a *attempt, reason Reason, err error) {
	w.tally.end(a)
	w.tally.failed(reason)
	w.outcome(slog.LevelError, a, message.CannotRemove, slog.String("reason", string(reason)), slog.Any("error", err))
	w.postpone(&a.candidate, refusedBackoff)
}

// outcome logs what became of an attempt.
func (w *worker) outcome(level slog.Level, a *attempt, words string, more ...slog.Attr) {
	attrs := append([]slog.Attr{
		slog.String("lock", lock.Clip([]byte(a.Name), maxLogName)),
		slog.String("uuid", lock.Clip([]byte(a.UUID()), maxLogValue)),
		slog.Int64("keys_deleted", a.result.deleted),
		slog.Int64("revision", a.result.revision),
	}, more...)
	w.Logger.LogAttrs(w.requests, level, words, attrs...)
}

// What stands in etcd is bounded before it is logged or kept: a name and a value
// by bytes, a record by fields.
const (
	maxLogName   = 512
	maxLogValue  = 2 << 10
	maxLogFields = 32
)

// announce logs a verdict with the whole record that it was made on.
func (w *worker) announce(words string, a *attempt) {
	w.Logger.LogAttrs(w.requests, slog.LevelInfo, words,
		slog.String("lock", lock.Clip([]byte(a.Name), maxLogName)),
		slog.Any("verdict", a.verdict),
		slog.Any("record", a.record))
}

// LogValue gives the record as it is kept in logs.
func (rec record) LogValue() slog.Value {
	fields := rec.Fields()
	attrs := make([]slog.Attr, 0, len(fields)+1)
	for _, f := range fields {
		attrs = append(attrs, slog.String(f.Name, f.Value))
	}
	if more := int(rec.Keys) - len(fields); more > 0 {
		attrs = append(attrs, slog.Int("more_fields", more))
	}
	return slog.GroupValue(attrs...)
}

// Field is one key of a lock, bounded, as valid UTF-8.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Fields returns the record's fields as they are logged, those that are known
// first.
func (rec record) Fields() []Field { return rec.bounded(maxLogFields, maxLogValue) }

func (rec record) bounded(most, bytes int) []Field {
	fields := make([]Field, 0, min(len(rec.fields), most))
	named := make(map[string]bool, cap(fields))
	for _, known := range []bool{true, false} {
		for _, f := range rec.fields {
			if (lock.ParseField([]byte(f.name)) != lock.FieldUnknown) != known || len(fields) >= most {
				continue
			}
			name := lock.Clip([]byte(f.name), maxLogName)
			if named[name] {
				// Different names that look the same when clipped: in a JSON object one
				// would hide the other.
				name += "#" + strconv.Itoa(len(fields))
			}
			named[name] = true
			fields = append(fields, Field{Name: name, Value: lock.Clip(f.value, bytes)})
		}
	}
	return fields
}
