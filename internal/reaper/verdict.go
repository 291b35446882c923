package reaper

import (
	"math"
	"time"
)

// Trigger is why a lock is removed.
type Trigger string

// The triggers, as metrics spell them.
const (
	Expiry Trigger = "expiry" // past its auto_unlock_at
	Orphan Trigger = "orphan" // fields without a uuid, unmodified for long enough
	API    Trigger = "api"    // a person asked for it
)

// Inputs are all that a verdict depends on: the same inputs give the same
// verdict. Times are UTC, zero means none; durations are in nanoseconds.
type Inputs struct {
	// Now is our wall clock.
	Now time.Time `json:"now"`
	// The lock's own times, by its owner's clock. Renewed: auto_unlock_at was
	// written after the acquisition.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	Renewed      bool      `json:"renewed,omitempty"`
	// OrphanDue is when an orphan had been left alone for long enough.
	OrphanDue time.Time `json:"orphan_due,omitzero"`
	Removable bool      `json:"removable"`
	Token     int64     `json:"token,omitempty"`
	Revision  int64     `json:"revision"`
	// What our clocks know of it: see lock.Sight.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	Age      time.Duration `json:"age"`
	Anchor   time.Duration `json:"anchor"`
	// Credit is for how long its owner could not renew.
	Credit time.Duration `json:"credit,omitempty"`
	// The rules that go for it; Policy is the glob that matched.
	Policy       string        `json:"policy,omitempty"`
	Mode         Mode          `json:"mode"`
	Grace        time.Duration `json:"grace"`
	Tolerance    time.Duration `json:"tolerance"`
	Settle       time.Duration `json:"settle"`
	StandbyDelay time.Duration `json:"standby_delay"`
	// Leader: no other replica acts before us.
	Leader bool `json:"leader"`
}

// Bounds on the patience with an owner of whom we have seen no sign of life.
const (
	maxPatience     = 5 * time.Minute
	defaultPatience = time.Minute
)

// Action is what a verdict comes to.
type Action string

// The actions.
const (
	Remove Action = "remove"
	Report Action = "report" // a dry run
	Wait   Action = "wait"   // for Verdict.Left
	Leave  Action = "leave"  // for people
)

// Verdict is a decision on one lock and what it was made on.
type Verdict struct {
	Inputs
	Action  Action  `json:"action"`
	Trigger Trigger `json:"trigger,omitempty"`
	// Due is from when on the lock may be removed, by our wall clock; Left is
	// how long it is until we act.
	Due  time.Time     `json:"due,omitzero"`
	Left time.Duration `json:"left,omitempty"`
}

// Decide is the verdict: a pure function of its inputs.
func Decide(in Inputs) Verdict {
	v := Verdict{Inputs: in, Action: Leave}
	var dueIn time.Duration
	switch orphan := in.Token == 0; {
	case !in.Removable:
		return v
	case orphan && !in.OrphanDue.IsZero():
		v.Trigger, dueIn = Orphan, in.OrphanDue.Sub(in.Now)
	case !orphan && !in.AutoUnlockAt.IsZero():
		v.Trigger, dueIn = Expiry, later(max(in.dueIn(), in.Anchor), in.Credit)
	default:
		return v
	}
	v.Due, v.Left = in.Now.Add(dueIn), dueIn
	if !in.Leader {
		v.Left = later(v.Left, in.StandbyDelay)
	}
	switch {
	case in.Mode == Off:
	case v.Left > 0:
		v.Action = Wait
	case in.Mode == Enforce:
		v.Action = Remove
	case in.Mode == DryRun:
		v.Action = Report
	}
	return v
}

// later adds a delay, which is not negative. Where that is more than there is
// time, it is never: what overflowed would be due at once.
func later(d, delay time.Duration) time.Duration {
	if d > math.MaxInt64-delay {
		return math.MaxInt64
	}
	return d + delay
}

// dueIn returns how long it is until the owner's own clock has passed the
// deadline by the grace. A clock of the owner that is slow, or one of ours that
// is fast, delays; nothing hastens. An owner whose clock was never compared with
// ours, as it never gave a sign of life that we saw, gets its patience as well.
func (in Inputs) dueIn() time.Duration {
	slow := time.Duration(0)
	if in.Measured && in.Offset < -in.Tolerance {
		slow = -in.Offset
	}
	due := in.AutoUnlockAt.Add(in.Grace).Add(slow).Sub(in.Now)
	if in.Measured {
		return due
	}
	return max(due, in.patience()+in.Grace-in.Age)
}

// patience is how long an owner may be silent, as far as its own times tell.
func (in Inputs) patience() time.Duration {
	patience := defaultPatience
	switch {
	case !in.AutoUnlockAt.Add(maxPatience).After(in.Now):
		return in.Settle // so long past that no clock explains it
	case !in.AliveAt.IsZero():
		patience = in.AutoUnlockAt.Sub(in.AliveAt)
	case !in.Renewed && !in.LockedAt.IsZero():
		patience = in.AutoUnlockAt.Sub(in.LockedAt)
	}
	return min(max(patience, 0), maxPatience)
}
