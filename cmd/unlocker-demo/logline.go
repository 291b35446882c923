package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// What the daemon logs about a removal: before it acts, and what came of it.
const (
	msgRemoving = "removing a lock that is due"
	msgRemoved  = "lock removed"
)

// tap posts what is written to it, a line at a time, as slog writes.
type tap post

// Write implements io.Writer.
func (t tap) Write(b []byte) (int, error) {
	l := &logLine{raw: string(b)}
	if err := json.Unmarshal(b, l); err != nil {
		return 0, err
	}
	t(l)
	return len(b), nil
}

// logLine is a line of the daemon's log, with what the demo reads of it.
type logLine struct {
	raw string

	Msg         string
	Lock        string
	KeysDeleted int64 `json:"keys_deleted"`
	Revision    int64
	Verdict     struct {
		Trigger      string
		AutoUnlockAt time.Time `json:"auto_unlock_at"`
		Due          time.Time
		Grace        time.Duration
		Measured     bool
	}
	Record map[string]any
}

// field returns a field of the record as text.
func (l *logLine) field(f lock.Field) string {
	v, _ := l.Record[f.String()].(string)
	return v
}

// tell implements event.
func (l *logLine) tell(n *narrator) {
	n.verbatim(l.raw)
	switch l.Msg {
	case msgRemoving:
		n.removing(l)
	case msgRemoved:
		n.page.say("unlocker", fmt.Sprintf("removed %s: %d keys in one transaction, revision %d (log line 2 of 2)",
			l.Lock, l.KeysDeleted, l.Revision), bad)
		if l.Lock == api {
			n.saw(apiLogged)
		}
	}
}

const clock = "15:04:05.0"

// removing tells the climax: what the log says of a lock before it is removed.
func (n *narrator) removing(l *logLine) {
	if s := n.locks[l.Lock]; s != nil {
		s.announced = true
	}
	v := l.Verdict
	n.page.gap()
	n.page.say("unlocker", fmt.Sprintf("REMOVES %s BY FORCE; logged before it acts (1 of 2):", l.Lock), bad)
	n.page.detail("holder", fmt.Sprintf("%s, process %s of %s", or(l.field(lock.FieldHostname)),
		or(l.field(lock.FieldPID)), or(l.field(lock.FieldOwner))))
	n.page.detail("since", since(l.field(lock.FieldLockedAt))+", "+renewed(l.field(lock.FieldAliveAt)))
	n.page.detail("for", or(l.field(lock.FieldPurpose)))
	line, _, _ := strings.Cut(l.field(lock.FieldBacktrace), "\n")
	n.page.detail("taken in", or(line))
	verdict := fmt.Sprintf("%s, due at %s", v.Trigger, v.Due.Local().Format(clock))
	if !v.AutoUnlockAt.IsZero() {
		verdict += fmt.Sprintf(" (auto_unlock_at %s + grace %s)", v.AutoUnlockAt.Local().Format(clock), secs(v.Grace))
	}
	if !v.AutoUnlockAt.IsZero() && !v.Measured {
		verdict += ", and patience: it was not seen to be taken"
	}
	n.page.detail("verdict", verdict)
}

func since(value string) string {
	t, err := lock.ParseTimestamp([]byte(value))
	if err != nil {
		return or(value)
	}
	return fmt.Sprintf("%s, %.1f s ago", t.Time().Local().Format(clock), time.Since(t.Time()).Seconds())
}

func renewed(value string) string {
	if value == "" {
		return "never renewed"
	}
	return "last renewed " + since(value)
}

func or(value string) string {
	if value == "" {
		return "(not said)"
	}
	return value
}
