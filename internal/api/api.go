package api

import "time"

// Lock is one lock, as the watch has shown it.
type Lock struct {
	Name string `json:"name"`
	// State is held, overdue, expired, undated, malformed or orphaned.
	State string `json:"state"`
	UUID  string `json:"uuid,omitempty"`
	// Hostname and Owner say who holds it.
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// The lock's own times, by its owner's clock. AliveAt is left out where the
	// deadline in force was not written with it.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AlertAt      time.Time `json:"alert_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	// Due is from when on the daemon may remove the lock, by its clock and as far
	// as it knows now; left out for never, and by commands that ask no daemon.
	Due time.Time `json:"due,omitzero"`
	// Token is the fencing token: the create_revision of the uuid key, 0 without
	// one. Revision is the newest one at which a key of the lock was written.
	Token    int64 `json:"token"`
	Revision int64 `json:"revision"`
	// Keys is the number of keys that lie directly under the name.
	Keys int `json:"keys"`
}

// LockPage answers GET /api/v1/locks: locks in the order of their names.
type LockPage struct {
	Locks []Lock `json:"locks"`
	// Next is the cursor for the next page, to be given as after; left out on
	// the last one.
	Next string `json:"next,omitempty"`
}

// LockDetail answers GET /api/v1/locks/NAME: a lock with all that etcd holds of
// it now.
type LockDetail struct {
	Lock
	Fields []Field `json:"fields"`
	// MoreFields counts those that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	// Verdict is what the daemon would decide now, with all its inputs: the form
	// is that of the log lines. Left out by commands that ask no daemon.
	Verdict any `json:"verdict,omitempty"`
}

// Field is one key of a lock.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Forced is a lock that was removed by force.
type Forced struct {
	At       time.Time `json:"at"`
	Name     string    `json:"name"`
	UUID     string    `json:"uuid,omitempty"`
	Hostname string    `json:"hostname,omitempty"`
	Owner    string    `json:"owner,omitempty"`
	// Trigger is expiry, orphan or api.
	Trigger string `json:"trigger"`
	// Revision is that of the deletion.
	Revision int64   `json:"revision"`
	Fields   []Field `json:"fields"`
	// MoreFields counts those that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	Verdict    any `json:"verdict,omitempty"`
}

// ForcedList answers GET /api/v1/forced-unlocks: those of this replica that
// were within the retention, the newest first.
type ForcedList struct {
	Forced []Forced `json:"forced_unlocks"`
}

// Status answers GET /api/v1/status.
type Status struct {
	Version string `json:"version"`
	// Identity names this replica in the election.
	Identity string    `json:"identity"`
	Now      time.Time `json:"now"`
	Prefix   string    `json:"prefix"`
	Mode     string    `json:"mode"`
	// Ready tells that the first listing is done.
	Ready bool `json:"ready"`
	// Leads tells whether this replica acts first, Leader who does as far as it
	// has seen; empty without an election, or before.
	Leads  bool   `json:"leads"`
	Leader string `json:"leader,omitempty"`
	// Locks counts the locks in each state; all states are there.
	Locks map[string]int `json:"locks"`
	// Backlog counts the locks that are due and still there.
	Backlog int    `json:"backlog"`
	Holds   []Hold `json:"holds"`
	Etcd    Etcd   `json:"etcd"`
	Clock   Clock  `json:"clock"`
	// Removed counts forced unlocks since the start, by trigger.
	Removed map[string]uint64 `json:"removed"`
}

// Hold is a reason why no lock is removed automatically at this moment.
type Hold struct {
	// Hold is its name, as in unlocker_reaper_hold; Reason says it in words.
	Hold   string    `json:"hold"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Etcd tells how the daemon sees the cluster.
type Etcd struct {
	// Up: the newest probe was answered and the watch is up.
	Up       bool     `json:"up"`
	Alarms   []string `json:"alarms"`
	Revision int64    `json:"revision"`
	// Progress is when the watch last showed a sign of life, Resynced when the
	// last full listing ended.
	Progress time.Time `json:"progress,omitzero"`
	Resynced time.Time `json:"resynced,omitzero"`
	// Error is the newest failure of the watch or of a listing, else the probe's,
	// while it lasts.
	Error string `json:"error,omitempty"`
}

// Clock tells how the owners' clocks compare with the daemon's.
type Clock struct {
	// Hosts counts those measured within the last hour. Offset is the daemon's
	// clock minus the median of theirs, 0 for fewer than three, in seconds.
	Hosts  int     `json:"hosts"`
	Offset float64 `json:"offset"`
	// Skewed are the hosts beyond the tolerance, the worst first, a limited
	// number.
	Skewed []HostClock `json:"skewed"`
}

// HostClock is the clock of an owner's host minus the daemon's, in seconds.
type HostClock struct {
	Hostname string  `json:"hostname"`
	Offset   float64 `json:"offset"`
}

// Error is the body of every answer that is not a success.
type Error struct {
	Error string `json:"error"`
}
