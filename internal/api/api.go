// Package api has the types of the JSON that the daemon's HTTP API answers and that the
// commands print with -o json, and the log messages: the names that programs outside look for.
// Those that write them and those that read them share them.
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
	Name string `json:"name"`
	// State is held, overdue, expired, undated, malformed or orphaned, according to the
	// clock of the holder as far as ClockOffset is known.
	State string `json:"state"`
	UUID  string `json:"uuid,omitempty"`
	// Hostname and Owner are the holder's host and service name.
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// Purpose is what the lock is for, Status how far the work is; both clipped to 253 bytes.
	Purpose string `json:"purpose,omitempty"`
	Status  string `json:"status,omitempty"`
	// The lock's times, by its holder's clock. AliveAt is left out where the deadline in
	// force was not written together with it.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AlertAt      time.Time `json:"alert_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	// ClockOffset is the holder's clock minus that of the daemon, in seconds; left out where it
	// was not observed or is within the tolerance, and by commands that ask no daemon.
	ClockOffset float64 `json:"clock_offset,omitempty"`
	// Due is the earliest time at which the daemon may remove the lock, by its clock and
	// as far as it knows now. It is left out for a lock that is never removed
	// automatically, and by commands that ask no daemon.
	Due time.Time `json:"due,omitzero"`
	// Explanation says in words what will happen to the lock, the lock being the subject: "waits
	// until 10:23:26: its last renewal was learned late, patience 1m0s". The times in it are UTC.
	// It is left out for a held lock in a page, and by commands that ask no daemon.
	Explanation string `json:"explanation,omitempty"`
	// Margin is the least share of its patience that this holder had left at a renewal, from 0
	// (at or past its deadline) to 1. It is left out where no renewal was observed, and by
	// commands that ask no daemon.
	Margin *float64 `json:"margin,omitempty"`
	// Rhythm is in the JSON of the lock itself, and left out where the daemon has seen none, by commands that ask no
	// daemon, and while the daemon does not see the locks.
	*Rhythm
	// Waiters is how many processes wait for the lock with a ticket, those of all slots where it is one. It is left out
	// if none is known to.
	Waiters int `json:"waiters,omitempty"`
	// Urgency is the place of the lock among all by urgency: sorted by it, byte by byte, the locks
	// that need a person soonest come first. Only with sort=urgency and in events.
	Urgency string `json:"urgency,omitempty"`
	// Token is the fencing token: the create_revision of the uuid key, 0 if there is no
	// such key. Revision is the newest mod_revision of the lock's keys.
	Token    int64 `json:"token"`
	Revision int64 `json:"revision"`
	// Keys is the number of keys directly under the name.
	Keys int `json:"keys"`
}

// Corrected returns one of the lock's times by the daemon's clock, and the zero time for none.
func (l *Lock) Corrected(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(-time.Duration(l.ClockOffset * float64(time.Second)))
}

// States returns the names of all states a lock can have.
func States() []string {
	var names []string
	for s := range protocol.NumStates {
		names = append(names, s.String())
	}
	return names
}

// StatesByUrgency returns the names of all states, the most urgent first.
func StatesByUrgency() []string {
	var names []string
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

// Texts returns what the holder did. Its status is not known.
func (p *Period) Texts() []Text {
	return []Text{{protocol.FieldPurpose.String(), "Purpose", p.Purpose}}
}

// LockPage answers GET /api/v1/locks: locks in the order of their names, or by urgency.
type LockPage struct {
	Locks []Lock `json:"locks"`
	// Matched is the number of all locks that match the query. Left out by commands.
	Matched int `json:"matched"`
	// Next is the value of after that returns the next page; left out on the last page.
	Next string `json:"next,omitempty"`
}

// LockDetail answers GET /api/v1/locks/NAME: a lock with all its fields as etcd holds them now.
type LockDetail struct {
	Lock
	Fields []Field `json:"fields"`
	// MoreFields counts the fields that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	// Verdict is what the daemon would decide now. Left out by commands that ask no daemon.
	Verdict *verdict.Verdict `json:"verdict,omitempty"`
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
	Name  string `json:"name"`
	Value string `json:"value"`
	// TruncatedFrom is the size of the value in etcd, in bytes, if Value is truncated.
	TruncatedFrom int `json:"truncated_from_bytes,omitempty"`
}

// Forced is a lock that was removed by force, or by an unknown client after its deadline: as its record in
// etcd has it, the ledger keeps it, the metrics count it, and the API answers it. All strings are bounded.
type Forced struct {
	At   time.Time `json:"at"`
	Name string    `json:"name"`
	UUID string    `json:"uuid,omitempty"`
	// Token is the fencing token of the lock; left out for an orphan.
	Token    int64  `json:"token,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	PID      string `json:"pid,omitempty"`
	// Trigger is left out if it is not known why, nor by whom, the lock was removed.
	Trigger verdict.Trigger `json:"trigger,omitempty"`
	// By is Self or Other. Left out by commands that ask no daemon.
	By string `json:"by,omitempty"`
	// Replica is the identity of the replica that removed it; left out for a manual unlock and where that
	// is not known.
	Replica string `json:"replica,omitempty"`
	// Who removed it, as user@host, and Reason say more about a manual unlock. Any client that may
	// write the record can have written them.
	Who    string `json:"who,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Revision is that of the deletion; 0 if only a listing showed it.
	Revision int64   `json:"revision"`
	Fields   []Field `json:"fields"`
	// MoreFields counts the fields that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	// Counted are the removals in a row that a brake counts, up to this one.
	Counted []Counted `json:"counted,omitempty"`
	// Verdict is the decision to remove the lock; left out for a manual unlock and where it is not known.
	Verdict *verdict.Verdict `json:"verdict,omitempty"`
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
	// UUID is that under which the lock is held.
	UUID string `json:"uuid"`
	// Reason is why, for the record.
	Reason string `json:"reason,omitempty"`
}

// UnlockMany is the body of POST /api/v1/unlock. Without a digest it is answered with a Selection, and removes nothing.
type UnlockMany struct {
	// Match is a pattern for the names of the locks, as in policies.
	Match string `json:"match"`
	// Silent selects only locks whose holders have missed several renewals, and removes none that was renewed since.
	Silent bool `json:"silent,omitempty"`
	// Reason is why, for the records.
	Reason string `json:"reason,omitempty"`
	// Digest is that of the Selection that was agreed to.
	Digest string `json:"digest,omitempty"`
}

// Selection has the locks that a request to unlock many would remove, by name.
type Selection struct {
	Locks []Lock `json:"locks"`
	// Left counts those that match and stay: nobody holds them, or their names are not whole.
	Left int `json:"left,omitempty"`
	// Digest is of what each removal compares: the name, the uuid and the token and, of silent ones, the newest
	// revision. It is left out where Locks is empty.
	Digest string `json:"digest,omitempty"`
}

// Unlocked is a line of the answer of POST /api/v1/unlock with a digest: a lock, what became of it, and the counts up to
// then. The last line has only counts; without it, the request ended early, and what else was removed has records.
type Unlocked struct {
	Name string `json:"name,omitempty"`
	UUID string `json:"uuid,omitempty"`
	// Outcome is OutcomeRemoved, at Revision, or OutcomeRefused or OutcomeUnknown, with an Error.
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
	Version string `json:"version"`
	// Identity names this replica in the election.
	Identity string    `json:"identity"`
	Now      time.Time `json:"now"`
	// Started is when this replica started: it knows of no removal by others before that.
	Started time.Time `json:"started"`
	Prefix  string    `json:"prefix"`
	Mode    string    `json:"mode"`
	// Ready reports whether the first listing is complete and the pauses were read.
	Ready bool `json:"ready"`
	// Leads reports whether this replica is the leader. Leader is the identity of the
	// leader; empty if there is no election or none has been seen yet.
	Leads  bool   `json:"leads"`
	Leader string `json:"leader,omitempty"`
	// Locks counts the locks in each state and has every state.
	Locks map[string]int `json:"locks"`
	// Storm is null unless many locks came due at once.
	Storm *Storm `json:"storm"`
	// Backlog counts the locks that are due, may be removed (no policy keeps them), and still exist.
	Backlog int    `json:"backlog"`
	Holds   []Hold `json:"holds"`
	// Pauses are what people paused, that of all locks first.
	Pauses []Pause `json:"pauses"`
	Etcd   Etcd    `json:"etcd"`
	Clock  Clock   `json:"clock"`
	// Removed counts forced unlocks since the start, by trigger.
	Removed map[verdict.Trigger]uint64 `json:"removed"`
	// NearMisses are the locks that were renewed with a tenth of their patience left or less, as
	// this replica observed within the last hour, at most 20: those more than once first, then the
	// least margin.
	NearMisses []NearMiss `json:"near_misses"`
}

// Storm is that so many locks came due at once that the removal of further ones is delayed.
type Storm struct {
	// Delayed counts the locks that wait because of it, RemovedBefore those that were deleted after they had
	// come due without the delay, within the window before it began and since.
	Delayed       int `json:"delayed"`
	RemovedBefore int `json:"removed_before"`
	// Until is when the last of those that wait comes due, at the latest.
	Until time.Time `json:"until"`
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
	Name string `json:"name"`
	// Hostname is that of the holder that had the least margin, the last one of several, Owner the
	// service. All are clipped.
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// Margin is the least share of the patience that was left, from 0, at or past the
	// deadline, to 0.1.
	Margin float64 `json:"margin"`
	// At is when the last late renewal was observed, Renewals how many there were without an
	// hour between them.
	At       time.Time `json:"at"`
	Renewals uint64    `json:"renewals"`
}

// Hold is a hold in force.
type Hold struct {
	// Hold is its name, as in unlocker_reaper_hold. Reason is for people.
	Hold   verdict.Hold `json:"hold"`
	Since  time.Time    `json:"since"`
	Reason string       `json:"reason"`
}

// Pause is how a person stopped the removal of all locks, or of those that match, for a while. Its
// JSON is also the record in etcd: the pause ends with that key.
type Pause struct {
	// Match is the glob for the names of the locks, as in policies; left out for a pause of all.
	Match string `json:"match,omitempty"`
	// By is who paused, as user@host, and Reason is why.
	By     string `json:"by"`
	Reason string `json:"reason"`
	// Since and Until are according to the clock of that host. A record that cannot be read has neither.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// PauseList answers GET /api/v1/pauses.
type PauseList struct {
	Pauses []Pause `json:"pauses"`
}

// PauseRequest is the body of POST /api/v1/pauses, which is answered with a Pause.
type PauseRequest struct {
	// Match is a pattern for the names of the locks, as in policies; left out for all locks.
	Match string `json:"match,omitempty"`
	// For is how long, such as 2h, and Reason is why.
	For    string `json:"for"`
	Reason string `json:"reason"`
}

// Etcd is the state of the cluster as the daemon sees it.
type Etcd struct {
	// Up reports whether etcd answers probes and the watch is connected.
	Up       bool     `json:"up"`
	Alarms   []string `json:"alarms"`
	Revision int64    `json:"revision"`
	// WatchLag is by how many revisions the watch is behind the probe.
	WatchLag int64 `json:"watch_lag_revisions"`
	// Progress is when the watch last received something from etcd, Resynced when the
	// last full listing ended.
	Progress time.Time `json:"progress,omitzero"`
	Resynced time.Time `json:"resynced,omitzero"`
	// Probed is when the last probe began that showed that holders can renew.
	Probed time.Time `json:"probed,omitzero"`
	// Error is the last failure of the watch or of a listing, or else of the probe, until
	// the next success.
	Error string `json:"error,omitempty"`
	// Certificates are those with which the daemon connects to etcd.
	Certificates []Certificate `json:"certificates,omitempty"`
}

// Certificate is one of the daemon's, or the first of an authority's to expire.
type Certificate struct {
	// Name is as in unlocker_certificate_expiry_timestamp_seconds.
	Name string `json:"name"`
	// Expires is left out if the file cannot be read.
	Expires time.Time `json:"expires,omitzero"`
}

// Clock compares the holders' clocks with the daemon's.
type Clock struct {
	// Hosts counts the hosts measured within the last hour. Offset is the daemon's clock
	// minus the median of theirs, in seconds; 0 if there are fewer than three.
	Hosts  int     `json:"hosts"`
	Offset float64 `json:"offset"`
	// Skewed are the hosts beyond the clock tolerance, the worst first, up to a limit.
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
