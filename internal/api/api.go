package api

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Lock is one lock, in a page as the watch has shown it.
type Lock struct {
	Name string `json:"name"`
	// State is held, overdue, expired, undated, malformed or orphaned.
	State string `json:"state"`
	UUID  string `json:"uuid,omitempty"`
	// Hostname and Owner are the holder's host and service name.
	Hostname string `json:"hostname,omitempty"`
	Owner    string `json:"owner,omitempty"`
	// The lock's times, by its holder's clock. AliveAt is left out where the deadline in
	// force was not written together with it.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AlertAt      time.Time `json:"alert_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	// Due is the earliest time at which the daemon may remove the lock, by its clock and
	// as far as it knows now. It is left out for a lock that is never removed
	// automatically, and by commands that ask no daemon.
	Due time.Time `json:"due,omitzero"`
	// Explanation says in words what becomes of the lock, the lock being the subject:
	// "waits until 10:23:26: its last renewal was learned late, patience 1m0s". The times
	// in it are UTC. It is left out for a held lock in a page, and by commands that ask no
	// daemon.
	Explanation string `json:"explanation,omitempty"`
	// Token is the fencing token: the create_revision of the uuid key, 0 if there is no
	// such key. Revision is the newest mod_revision of the lock's keys.
	Token    int64 `json:"token"`
	Revision int64 `json:"revision"`
	// Keys is the number of keys directly under the name.
	Keys int `json:"keys"`
}

// LockPage answers GET /api/v1/locks: locks in the order of their names.
type LockPage struct {
	Locks []Lock `json:"locks"`
	// Next is the value of after that returns the next page; left out on the last page.
	Next string `json:"next,omitempty"`
}

// LockDetail answers GET /api/v1/locks/NAME: a lock with all its fields as etcd holds
// them now.
type LockDetail struct {
	Lock
	Fields []Field `json:"fields"`
	// MoreFields counts the fields that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	// Verdict is what the daemon would decide now. Left out by commands that ask no
	// daemon.
	Verdict *verdict.Verdict `json:"verdict,omitempty"`
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
	// Trigger is expiry, orphan or manual.
	Trigger string `json:"trigger"`
	// Revision is that of the deletion.
	Revision int64   `json:"revision"`
	Fields   []Field `json:"fields"`
	// MoreFields counts the fields that are not in Fields.
	MoreFields int `json:"more_fields,omitempty"`
	// Verdict is the decision to remove the lock. Left out by commands that ask no
	// daemon.
	Verdict *verdict.Verdict `json:"verdict,omitempty"`
}

// ForcedList answers GET /api/v1/forced-unlocks: the forced unlocks of this replica
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
	Prefix   string    `json:"prefix"`
	Mode     string    `json:"mode"`
	// Ready reports whether the first listing is complete.
	Ready bool `json:"ready"`
	// Leads reports whether this replica is the leader. Leader is the identity of the
	// leader; empty if there is no election or none has been seen yet.
	Leads  bool   `json:"leads"`
	Leader string `json:"leader,omitempty"`
	// Locks counts the locks in each state and has every state.
	Locks map[string]int `json:"locks"`
	// Backlog counts the locks that are due and still exist.
	Backlog int    `json:"backlog"`
	Holds   []Hold `json:"holds"`
	Etcd    Etcd   `json:"etcd"`
	Clock   Clock  `json:"clock"`
	// Removed counts forced unlocks since the start, by trigger.
	Removed map[string]uint64 `json:"removed"`
}

// Hold is a reason why the daemon removes no lock at this moment.
type Hold struct {
	// Hold is its name, as in unlocker_reaper_hold. Reason is for people.
	Hold   string    `json:"hold"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Etcd is the state of the cluster as the daemon sees it.
type Etcd struct {
	// Up reports whether the last probe was answered and the watch is connected.
	Up       bool     `json:"up"`
	Alarms   []string `json:"alarms"`
	Revision int64    `json:"revision"`
	// Progress is when the watch last received something from etcd, Resynced when the
	// last full listing ended.
	Progress time.Time `json:"progress,omitzero"`
	Resynced time.Time `json:"resynced,omitzero"`
	// Error is the last failure of the watch or of a listing, or else of the probe, until
	// the next success.
	Error string `json:"error,omitempty"`
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

// Error is the body of every answer that is not a success.
type Error struct {
	Error string `json:"error"`
}
