package reaper

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Mode is what happens to a lock that is due.
type Mode string

// The modes, as the configuration spells them.
const (
	Enforce Mode = "enforce" // remove it
	DryRun  Mode = "dry-run" // say that it would be removed
	Off     Mode = "off"     // nothing
)

// Trigger is why a lock is removed.
type Trigger string

// The triggers, as metrics spell them.
const (
	Expiry Trigger = "expiry" // past its auto_unlock_at
	Orphan Trigger = "orphan" // fields without a uuid, unmodified for long enough
	API    Trigger = "api"    // a person asked for it
)

// Rules are the part of the configuration that verdicts depend on.
type Rules struct {
	Mode  Mode
	Grace time.Duration
}

// Due returns the time, by our wall clock, from which on a lock with a deadline
// may be removed.
func (r Rules) Due(l *lock.Lock) lock.Timestamp {
	return l.AutoUnlockAt() + lock.Timestamp(r.Grace)
}

// Inputs are all that a verdict depends on: the same inputs give the same
// verdict. Times are UTC; zero means none.
type Inputs struct {
	Now          time.Time     `json:"now"`
	State        string        `json:"state"`
	AutoUnlockAt time.Time     `json:"auto_unlock_at,omitzero"`
	OrphanSince  time.Time     `json:"orphan_since,omitzero"`
	Grace        time.Duration `json:"grace"`
	Mode         Mode          `json:"mode"`
	Removable    bool          `json:"removable"`
	Revision     int64         `json:"revision"`
	Token        int64         `json:"token,omitempty"`
}

// Action is what a verdict comes to.
type Action string

// The actions.
const (
	Remove Action = "remove"
	Report Action = "report" // a dry run
	Wait   Action = "wait"   // until Verdict.Due
	Leave  Action = "leave"  // for people
)

// Verdict is a decision on one lock and what it was made on.
type Verdict struct {
	Inputs
	Action  Action    `json:"action"`
	Trigger Trigger   `json:"trigger,omitempty"`
	Due     time.Time `json:"due,omitzero"`
}

// Decide is the verdict: a pure function of its inputs.
func Decide(in Inputs) Verdict {
	v := Verdict{Inputs: in, Action: Leave}
	switch orphan := in.Token == 0; {
	case !in.Removable:
		return v
	case orphan && !in.OrphanSince.IsZero():
		v.Trigger, v.Due = Orphan, in.OrphanSince
	case !orphan && !in.AutoUnlockAt.IsZero():
		v.Trigger, v.Due = Expiry, in.AutoUnlockAt.Add(in.Grace)
	default:
		return v
	}
	switch {
	case in.Now.Before(v.Due):
		v.Action = Wait
	case in.Mode == Enforce:
		v.Action = Remove
	case in.Mode == DryRun:
		v.Action = Report
	}
	return v
}

// inputs collects what the verdict on a lock depends on.
func (r Rules) inputs(l *lock.Lock, orphanSince, now time.Time) Inputs {
	in := Inputs{
		Now:          now.UTC(),
		State:        l.State(lock.TimestampOf(now)).String(),
		AutoUnlockAt: l.AutoUnlockAt().Time(),
		Grace:        r.Grace,
		Mode:         r.Mode,
		Removable:    l.Removable(),
		Revision:     l.Revision,
		Token:        l.Token,
	}
	if l.Token == 0 {
		in.OrphanSince = orphanSince.UTC()
	}
	return in
}
