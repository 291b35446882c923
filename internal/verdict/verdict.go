package verdict

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
	// The lock's own times, by its holder's clock. Renewed reports whether
	// auto_unlock_at was written after the acquisition.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	Renewed      bool      `json:"renewed,omitempty"`
	// OrphanDue is when an orphan had stayed unmodified for long enough.
	OrphanDue time.Time `json:"orphan_due,omitzero"`
	Removable bool      `json:"removable"`
	Token     int64     `json:"token,omitempty"`
	Revision  int64     `json:"revision"`
	// What our clocks know of it: see Observation.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	Age      time.Duration `json:"age"`
	Earliest time.Duration `json:"anchor"`
	// Allowance is for how long outages kept its holder from renewing.
	Allowance time.Duration `json:"credit,omitempty"`
	// The rules that apply to it; Policy is the glob that matched.
	Policy       string        `json:"policy,omitempty"`
	Mode         Mode          `json:"mode"`
	Grace        time.Duration `json:"grace"`
	Tolerance    time.Duration `json:"tolerance"`
	Settle       time.Duration `json:"settle"`
	StandbyDelay time.Duration `json:"standby_delay"`
	// Leader reports whether no other replica acts before this one.
	Leader bool `json:"leader"`
}

// Bounds on the patience with a holder whose clock was never observed.
const (
	maxPatience     = 5 * time.Minute
	defaultPatience = time.Minute
)

// Action is what a verdict comes to.
type Action string

// The actions.
const (
	Remove Action = "remove"
	Report Action = "report" // dry run: log and count it
	Wait   Action = "wait"   // for Verdict.Remaining
	Leave  Action = "leave"  // never automatically
)

// Verdict is a decision on one lock, with the inputs that it was made on.
type Verdict struct {
	Inputs
	Action  Action  `json:"action"`
	Trigger Trigger `json:"trigger,omitempty"`
	// Due is the instant, by our wall clock, from which the lock may be removed;
	// Remaining is how long it is until this replica acts.
	Due       time.Time     `json:"due,omitzero"`
	Remaining time.Duration `json:"left,omitempty"`
}

// Decide makes the verdict. It is a pure function of its inputs.
func Decide(in Inputs) Verdict {
	v := Verdict{Inputs: in, Action: Leave}
	var dueIn time.Duration
	switch orphan := in.Token == 0; {
	case !in.Removable:
		return v
	case orphan && !in.OrphanDue.IsZero():
		v.Trigger, dueIn = Orphan, in.OrphanDue.Sub(in.Now)
	case !orphan && !in.AutoUnlockAt.IsZero():
		v.Trigger, dueIn = Expiry, delayed(max(in.dueIn(), in.Earliest), in.Allowance)
	default:
		return v
	}
	v.Due, v.Remaining = in.Now.Add(dueIn), dueIn
	if !in.Leader {
		v.Remaining = delayed(v.Remaining, in.StandbyDelay)
	}
	switch {
	case in.Mode == Off:
	case v.Remaining > 0:
		v.Action = Wait
	case in.Mode == Enforce:
		v.Action = Remove
	case in.Mode == DryRun:
		v.Action = Report
	}
	return v
}

// delayed adds a delay, which is not negative, and saturates: a sum that overflowed
// would be due at once.
func delayed(d, delay time.Duration) time.Duration {
	if d > math.MaxInt64-delay {
		return math.MaxInt64
	}
	return d + delay
}

// dueIn returns how long it is until the holder's own clock has passed the
// deadline by the grace. A slow clock of the holder, or a fast one of ours,
// delays; nothing hastens. A holder whose clock was never compared with ours, as
// no write of it was observed live, gets its patience as well.
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

// patience is how long a holder may take between renewals, as far as its own
// times show.
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
