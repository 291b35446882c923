package verdict

import (
	"math"
	"time"
)

// Trigger is why a lock is removed.
type Trigger string

// The triggers, with their names in metrics.
const (
	Expiry Trigger = "expiry" // past its auto_unlock_at
	Orphan Trigger = "orphan" // fields without a uuid, unmodified for the orphan grace
	API    Trigger = "api"    // requested by a person
)

// Inputs are everything on which a verdict depends: the same inputs give the same verdict. Times
// are UTC, zero means none; durations are in nanoseconds.
type Inputs struct {
	// Now is the daemon's wall clock.
	Now time.Time `json:"now"`
	// The times of the lock, by its holder's clock. Renewed reports whether auto_unlock_at
	// was written after the acquisition.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	Renewed      bool      `json:"renewed,omitempty"`
	// OrphanDue is when an orphan has been unmodified for the orphan grace.
	OrphanDue time.Time `json:"orphan_due,omitzero"`
	Removable bool      `json:"removable"`
	Token     int64     `json:"token,omitempty"`
	Revision  int64     `json:"revision"`
	// The clock observation: see Observation.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	Age      time.Duration `json:"age"`
	Earliest time.Duration `json:"anchor"`
	// Allowance is how long outages prevented the holder from renewing.
	Allowance time.Duration `json:"credit,omitempty"`
	// The rules that apply to the lock. Policy is the glob that matched.
	Policy       string        `json:"policy,omitempty"`
	Mode         Mode          `json:"mode"`
	Grace        time.Duration `json:"grace"`
	Tolerance    time.Duration `json:"tolerance"`
	Settle       time.Duration `json:"settle"`
	StandbyDelay time.Duration `json:"standby_delay"`
	// Leader reports whether this replica acts without the standby delay.
	Leader bool `json:"leader"`
}

// Limits of the patience for a holder whose clock was never observed.
const (
	maxPatience     = 5 * time.Minute
	defaultPatience = time.Minute
)

// Action is what to do with a lock.
type Action string

// The actions.
const (
	Remove Action = "remove"
	Report Action = "report" // log and count it (dry run)
	Wait   Action = "wait"   // act after Verdict.Remaining
	Leave  Action = "leave"  // never remove it automatically
)

// Verdict is a decision on one lock, with its inputs.
type Verdict struct {
	Inputs
	Action  Action  `json:"action"`
	Trigger Trigger `json:"trigger,omitempty"`
	// Due is the instant, by the daemon's wall clock, from which the lock may be removed.
	// Remaining is the time until this replica acts.
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

// delayed adds a delay, which must not be negative. It saturates, as a sum that overflows would
// be due at once.
func delayed(d, delay time.Duration) time.Duration {
	if d > math.MaxInt64-delay {
		return math.MaxInt64
	}
	return d + delay
}

// dueIn returns the time until the holder's clock has passed the deadline by the grace. A slow
// clock of the holder or a fast clock of the daemon delays it; nothing makes it earlier. A holder
// whose clock was never observed also gets its patience.
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

// patience estimates the time between two renewals of the holder from the times of the lock.
func (in Inputs) patience() time.Duration {
	patience := defaultPatience
	switch {
	case !in.AutoUnlockAt.Add(maxPatience).After(in.Now):
		return in.Settle // no plausible offset of a clock explains a deadline so long past
	case !in.AliveAt.IsZero():
		patience = in.AutoUnlockAt.Sub(in.AliveAt)
	case !in.Renewed && !in.LockedAt.IsZero():
		patience = in.AutoUnlockAt.Sub(in.LockedAt)
	}
	return min(max(patience, 0), maxPatience)
}
