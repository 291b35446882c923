// Package api has the types of the JSON that the daemon's HTTP API answers and that the
// commands print with -o json, and the log messages: the names that programs outside look for.
// Those that write them and those that read them share them. openapi.yaml of package web says what
// each field is; a test holds the two together.
//
// Guaranteed: times are RFC 3339 in UTC and left out where there are none; strings are
// valid UTF-8 and bounded. Clock offsets are seconds, the durations of a verdict are
// nanoseconds as in the log. Not guaranteed: that a string is safe to print. Most of them
// come from etcd, where any client may have written them.
package api

import (
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Lock is one lock, in a page as the watch has shown it.
type Lock struct {
	Name         string    `json:"name"`
	State        string    `json:"state"`
	UUID         string    `json:"uuid,omitempty"`
	Hostname     string    `json:"hostname,omitempty"`
	Owner        string    `json:"owner,omitempty"`
	Purpose      string    `json:"purpose,omitempty"`
	Status       string    `json:"status,omitempty"`
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AlertAt      time.Time `json:"alert_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	ClockOffset  float64   `json:"clock_offset,omitempty"`
	Due          time.Time `json:"due,omitzero"`
	Explanation  string    `json:"explanation,omitempty"`
	Margin       *float64  `json:"margin,omitempty"`
	*Rhythm
	Waiters  int    `json:"waiters,omitempty"`
	Urgency  string `json:"urgency,omitempty"`
	Token    int64  `json:"token"`
	Revision int64  `json:"revision"`
	Keys     int    `json:"keys"`
}

// Corrected returns one of the lock's times by the daemon's clock, and the zero time for none.
func (l *Lock) Corrected(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-time.Duration(l.ClockOffset * float64(time.Second)))
}

// States returns the names of all states a lock can have.
func States() (names []string) {
	for s := range protocol.NumStates {
		names = append(names, s.String())
	}
	return names
}

// StatesByUrgency returns the names of all states, the most urgent first.
func StatesByUrgency() (names []string) {
	for _, s := range protocol.ByUrgency() {
		names = append(names, s.String())
	}
	return names
}

// maxName bounds a name, in bytes. etcd accepts keys of more than a megabyte.
const maxName = 4 << 10

// Clipped reports whether a name is not whole: that of a lock is clipped to maxName, that of a removed one to
// protocol.MaxName.
func Clipped(name string) bool {
	return len(name) >= protocol.MaxName && strings.HasSuffix(name, "…")
}

// NewLock returns a lock as it is at now, where the clock of its holder is ahead. A key that
// belongs to no lock has a name that begins with a slash.
func NewLock(l *protocol.Lock, now time.Time, ahead time.Duration) Lock {
	return Lock{
		Name:         protocol.Clip([]byte(l.Name), maxName),
		State:        l.State(protocol.TimestampOf(now.Add(ahead))).String(),
		UUID:         l.UUID(),
		Hostname:     l.Hostname(),
		Owner:        l.Owner(),
		Purpose:      l.Text(protocol.FieldPurpose),
		Status:       l.Text(protocol.FieldStatus),
		LockedAt:     l.LockedAt().Time(),
		AlertAt:      l.AlertAt().Time(),
		AutoUnlockAt: l.AutoUnlockAt().Time(),
		AliveAt:      l.AliveAt().Time(),
		ClockOffset:  ahead.Seconds(),
		Token:        l.Token,
		Revision:     l.Revision,
		Keys:         int(l.Keys),
	}
}

// Text is a field of a lock that says what its holder does.
type Text struct{ Field, Title, Value string }

// Texts returns what the holder does, in the order in which it is shown.
func (l *Lock) Texts() []Text {
	return []Text{
		{protocol.FieldPurpose.String(), "Purpose", l.Purpose},
		{protocol.FieldStatus.String(), "Status", l.Status},
	}
}

// LockPage answers GET /api/v1/locks: locks in the order of their names, or by urgency.
type LockPage struct {
	Locks   []Lock `json:"locks"`
	Matched int    `json:"matched"`
	Next    string `json:"next,omitempty"`
}

// LockDetail answers GET /api/v1/locks/NAME: a lock with all its fields as etcd holds them now.
type LockDetail struct {
	Lock
	Fields     []Field          `json:"fields"`
	MoreFields int              `json:"more_fields,omitempty"`
	Verdict    *verdict.Verdict `json:"verdict,omitempty"`
}

// Answered returns when the holder last answered a question, by the daemon's clock as far as its offset is known; zero
// for never.
func (l *LockDetail) Answered() time.Time {
	for _, f := range l.Fields {
		if at, err := protocol.ParseTimestamp([]byte(f.Value)); err == nil && f.Name == protocol.FieldAnsweredAt.String() {
			return l.Corrected(at.Time())
		}
	}
	return time.Time{}
}

// Field is one key of a lock.
type Field struct {
	Name          string `json:"name"`
	Value         string `json:"value"`
	TruncatedFrom int    `json:"truncated_from_bytes,omitempty"`
}

// Forced is a lock that was removed by force, or by an unknown client after its deadline: as its record in
// etcd has it, the ledger keeps it, the metrics count it, and the API answers it. All strings are bounded.
type Forced struct {
	At         time.Time        `json:"at"`
	Name       string           `json:"name"`
	UUID       string           `json:"uuid,omitempty"`
	Token      int64            `json:"token,omitempty"`
	Hostname   string           `json:"hostname,omitempty"`
	Owner      string           `json:"owner,omitempty"`
	PID        string           `json:"pid,omitempty"`
	Trigger    verdict.Trigger  `json:"trigger,omitempty"`
	By         string           `json:"by,omitempty"`
	Replica    string           `json:"replica,omitempty"`
	Who        string           `json:"who,omitempty"`
	Reason     string           `json:"reason,omitempty"`
	Revision   int64            `json:"revision"`
	Fields     []Field          `json:"fields"`
	MoreFields int              `json:"more_fields,omitempty"`
	Counted    []Counted        `json:"counted,omitempty"`
	Verdict    *verdict.Verdict `json:"verdict,omitempty"`
}

// Counted is a removal that a brake counts: the revision of the deletion, the token of the lock, and when it was.
type Counted struct {
	Revision int64     `json:"revision"`
	Token    int64     `json:"token,omitempty"`
	At       time.Time `json:"at"`
}

// By whom a lock was removed.
const (
	// Self is the daemon that answers.
	Self = "self"
	// Other is a person, if the trigger is manual. If there is none, it is another replica, a
	// person, the holder after its deadline, or the daemon itself if etcd did not answer it.
	Other = "other"
)

// Unlock is the body of POST /api/v1/locks/NAME/unlock, which is answered with a Forced.
type Unlock struct {
	UUID   string `json:"uuid"`
	Reason string `json:"reason,omitempty"`
}

// UnlockMany is the body of POST /api/v1/unlock. Without a digest it is answered with a Selection, and removes nothing.
type UnlockMany struct {
	Match  string `json:"match"`
	Silent bool   `json:"silent,omitempty"`
	Reason string `json:"reason,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// Selection has the locks that a request to unlock many would remove, by name.
type Selection struct {
	Locks  []Lock `json:"locks"`
	Left   int    `json:"left,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// Unlocked is a line of the answer of POST /api/v1/unlock with a digest: a lock, what became of it, and the counts up to
// then. The last line has only counts; without it, the request ended early, and what else was removed has records.
type Unlocked struct {
	Name     string `json:"name,omitempty"`
	UUID     string `json:"uuid,omitempty"`
	Outcome  string `json:"outcome,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Error    string `json:"error,omitempty"`
	Total    int    `json:"total"`
	Removed  int    `json:"removed"`
	Refused  int    `json:"refused"`
	Unknown  int    `json:"unknown"`
	NotTried int    `json:"not_tried"`
}

// What became of one of many locks. Unknown is that etcd did not answer: it may have been removed.
const (
	OutcomeRemoved = "removed"
	OutcomeRefused = "refused"
	OutcomeUnknown = "unknown"
)

// ForcedList answers GET /api/v1/forced-unlocks: the forced unlocks that this replica knows of
// within the retention, newest first.
type ForcedList struct {
	Forced []Forced `json:"forced_unlocks"`
}

// Status answers GET /api/v1/status.
type Status struct {
	Version    string                     `json:"version"`
	Identity   string                     `json:"identity"`
	Now        time.Time                  `json:"now"`
	Started    time.Time                  `json:"started"`
	Prefix     string                     `json:"prefix"`
	Mode       string                     `json:"mode"`
	Ready      bool                       `json:"ready"`
	Leads      bool                       `json:"leads"`
	Leader     string                     `json:"leader,omitempty"`
	Locks      map[string]int             `json:"locks"`
	Storm      *Storm                     `json:"storm"`
	Backlog    int                        `json:"backlog"`
	Holds      []Hold                     `json:"holds"`
	Deadlocks  []Deadlock                 `json:"deadlocks"`
	Pauses     []Pause                    `json:"pauses"`
	Etcd       Etcd                       `json:"etcd"`
	Clock      Clock                      `json:"clock"`
	Removed    map[verdict.Trigger]uint64 `json:"removed"`
	NearMisses []NearMiss                 `json:"near_misses"`
}

// Storm is that so many locks came due at once that the removal of further ones is delayed.
type Storm struct {
	Delayed       int       `json:"delayed"`
	RemovedBefore int       `json:"removed_before"`
	Until         time.Time `json:"until"`
}

// Waiting returns how many locks wait because of a storm; nil is none.
func (s *Storm) Waiting() int {
	if s == nil {
		return 0
	}
	return s.Delayed
}

// NearMiss is a lock that was almost removed: its owner renewed it late.
type NearMiss struct {
	Name     string    `json:"name"`
	Hostname string    `json:"hostname,omitempty"`
	Owner    string    `json:"owner,omitempty"`
	Margin   float64   `json:"margin"`
	At       time.Time `json:"at"`
	Renewals uint64    `json:"renewals"`
}

// Hold is a hold in force.
type Hold struct {
	Hold   verdict.Hold `json:"hold"`
	Since  time.Time    `json:"since"`
	Reason string       `json:"reason"`
}

// Pause is how a person stopped the removal of all locks, or of those that match, for a while. Its
// JSON is also the record in etcd: the pause ends with that key.
type Pause struct {
	Match  string    `json:"match,omitempty"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since,omitzero"`
	Until  time.Time `json:"until,omitzero"`
}

// PauseList answers GET /api/v1/pauses.
type PauseList struct {
	Pauses []Pause `json:"pauses"`
}

// PauseRequest is the body of POST /api/v1/pauses, which is answered with a Pause.
type PauseRequest struct {
	Match  string `json:"match,omitempty"`
	For    string `json:"for"`
	Reason string `json:"reason"`
}

// Etcd is the state of the cluster as the daemon sees it.
type Etcd struct {
	Up           bool          `json:"up"`
	Alarms       []string      `json:"alarms"`
	Revision     int64         `json:"revision"`
	WatchLag     int64         `json:"watch_lag_revisions"`
	Progress     time.Time     `json:"progress,omitzero"`
	Resynced     time.Time     `json:"resynced,omitzero"`
	Probed       time.Time     `json:"probed,omitzero"`
	Error        string        `json:"error,omitempty"`
	Certificates []Certificate `json:"certificates,omitempty"`
}

// Certificate is one of the daemon's, or the first of an authority's to expire.
type Certificate struct {
	Name    string    `json:"name"`
	Expires time.Time `json:"expires,omitzero"`
}

// Clock compares the holders' clocks with the daemon's.
type Clock struct {
	Hosts  int         `json:"hosts"`
	Offset float64     `json:"offset"`
	Skewed []HostClock `json:"skewed"`
}

// HostClock is the offset of a host's clock from the daemon's, in seconds.
type HostClock struct {
	Hostname string  `json:"hostname"`
	Offset   float64 `json:"offset"`
}

// Ahead returns by how much the clocks of hosts are ahead of the daemon's.
func (c *Clock) Ahead() map[string]time.Duration {
	ahead := make(map[string]time.Duration, len(c.Skewed))
	for _, h := range c.Skewed {
		ahead[h.Hostname] = time.Duration(h.Offset * float64(time.Second))
	}
	return ahead
}

// ErrorText returns the text of an error, bounded, since it may be etcd's.
func ErrorText(err error) string {
	const limit = 500 // bytes
	return protocol.Clip([]byte(err.Error()), limit)
}

// Error is the body of every answer that is not a success.
type Error struct {
	Error string `json:"error"`
}
