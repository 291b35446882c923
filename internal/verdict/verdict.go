// Package verdict decides whether a lock may be removed.
//
// It implements the promises S2, S3 and S8 of docs/safety.md: what a verdict depends on
// (Inputs), the decision (Decide), the rules and policies of the configuration (Rules), and
// the holds that stop all automatic removals (Holds).
//
// Guaranteed: the same inputs give the same verdict. Everything is a function of values, or a
// state machine that gets the time as an argument. There is no clock, goroutine, I/O or log.
//
// Not guaranteed: that the inputs are current. The transaction of package lockstore checks that.
package verdict

import (
	"log/slog"
	"math"
	"reflect"
	"strings"
	"time"
)

// Trigger is why a lock is removed.
type Trigger string

// The triggers, with their names in metrics.
const (
	Expiry Trigger = "expiry" // past its auto_unlock_at
	Orphan Trigger = "orphan" // fields without a uuid, unmodified for the orphan grace
	Manual Trigger = "manual" // requested by a user
	// Presumed is of no verdict: a removal that etcd did not answer, of a lock that vanished whole meanwhile. It
	// was removed, or released in the same moment.
	Presumed Trigger = "presumed"
	// Ended is of a record that is not of a removal: it ends what a brake counts.
	Ended Trigger = "ended"
)

// Inputs are all that a verdict depends on: the same inputs give the same verdict.
// Times are UTC, zero means none; durations are in nanoseconds.
type Inputs struct {
	// Now is the daemon's wall clock.
	Now time.Time `json:"now"`
	// The times of the lock, by its holder's clock. Renewed reports whether auto_unlock_at
	// was written after the acquisition.
	LockedAt     time.Time `json:"locked_at,omitzero"`
	AutoUnlockAt time.Time `json:"auto_unlock_at,omitzero"`
	AliveAt      time.Time `json:"alive_at,omitzero"`
	Renewed      bool      `json:"renewed,omitempty"`
	// OrphanDue is when an orphan has stayed unmodified for long enough.
	OrphanDue time.Time `json:"orphan_due,omitzero"`
	// Fault says why a lock is malformed, which is never removable.
	Fault     string `json:"fault,omitempty"`
	Removable bool   `json:"removable"`
	Token     int64  `json:"token,omitempty"`
	Revision  int64  `json:"revision"`
	Observation
	// Allowance is for how long outages kept its holder from renewing: it is added to the deadline.
	// PatienceAllowance is that since we learned of its last write, which is added to the patience.
	Allowance         time.Duration `json:"allowance,omitempty"`
	PatienceAllowance time.Duration `json:"patience_allowance,omitempty"`
	// The rules that apply to it; Policy is the glob that matched.
	Policy       string        `json:"policy,omitempty"`
	Mode         Mode          `json:"mode"`
	Grace        time.Duration `json:"grace"`
	Tolerance    time.Duration `json:"tolerance"`
	StandbyDelay time.Duration `json:"standby_delay"`
	Drift        int           `json:"drift_ppm,omitempty"`
	// Forced is how many locks of its name in a row expired and were removed, for a brake: from MaxForced on it is
	// kept; 0 is without a brake.
	Forced    int `json:"forced,omitempty"`
	MaxForced int `json:"max_forced,omitempty"`
	// Leader reports whether this replica acts without the standby delay.
	Leader bool `json:"leader"`
	// PausedUntil is the end of the pause of some locks that applies to it, and Pause whose it is
	// and why, in words.
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Pause       string    `json:"pause,omitempty"`
}

// maxPatience is the patience with a holder whose times do not show how often it
// renews, and the maximum for any other.
const maxPatience = 5 * time.Minute

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
	// Remaining is the time until this replica acts, unless it is elected before.
	Due       time.Time     `json:"due,omitzero"`
	Remaining time.Duration `json:"remaining,omitempty"`
	// Reason is the rule that decides when the lock is removed.
	Reason Reason `json:"reason,omitempty"`
}

// Reason is the rule that decides when a lock is removed.
type Reason string

// The reasons: of those that apply, the one that ends last. A pause changes only when the lock is
// removed, not its due.
const (
	ByDeadline Reason = "deadline" // auto_unlock_at and grace
	BySlow     Reason = "slow"     // and the holder's clock is slow
	ByPatience Reason = "patience" // the holder's clock was not observed
	ByStep     Reason = "step"     // our wall clock stepped
	ByOrphan   Reason = "orphan"   // orphan_grace
	ByPause    Reason = "pause"    // a person paused the removal of such locks
	ByBrake    Reason = "brake"    // too many locks of its name in a row expired: until a user looks
)

// Decide makes the verdict. It is a pure function of its inputs.
func Decide(in Inputs) Verdict {
	v := Verdict{Inputs: in, Action: Leave}
	var dueIn time.Duration
	switch orphan := in.Token == 0; {
	case !in.Removable:
		return v
	case orphan && !in.OrphanDue.IsZero():
		v.Trigger, v.Reason, dueIn = Orphan, ByOrphan, in.OrphanDue.Sub(in.Now)
	case !orphan && !in.AutoUnlockAt.IsZero():
		v.Trigger = Expiry
		_, v.Reason = in.baseDueIn()
		dueIn = in.DueIn()
	default:
		return v
	}
	v.Due, v.Remaining = in.Now.Add(dueIn), dueIn
	if !in.Leader {
		v.Remaining = plus(v.Remaining, in.StandbyDelay)
	}
	if paused := max(in.PausedUntil.Sub(in.Now), minPaused); !in.PausedUntil.IsZero() && paused > v.Remaining {
		v.Remaining, v.Reason = paused, ByPause
	}
	switch {
	case in.Mode == Off:
	case v.Remaining > 0:
		v.Action = Wait
	case in.MaxForced > 0 && in.Forced >= in.MaxForced:
		v.Reason = ByBrake
	case in.Mode == Enforce:
		v.Action = Remove
	case in.Mode == DryRun:
		v.Action = Report
	}
	return v
}

// minPaused is the minimum remaining time reported for an active pause: it ends with its lease in etcd,
// not by our wall clock.
const minPaused = time.Second

// DueIn returns how long it is until a lock with a deadline is due; negative once it is.
func (in Inputs) DueIn() time.Duration {
	base, _ := in.baseDueIn()
	return plus(plus(base, in.drift()), in.StormDelay)
}

// drift is by how much the holder's clock may have fallen behind from the stamp that counts to the
// deadline. The acquisition's is the oldest that an observation of before may be of.
func (in Inputs) drift() time.Duration {
	stamp := writtenAt(in.LockedAt, in.AliveAt, in.Renewed)
	if stamp.IsZero() || in.Measured && in.Late {
		stamp = in.LockedAt
	}
	span := in.Patience()
	if !stamp.IsZero() {
		span = max(0, in.AutoUnlockAt.Sub(stamp))
	}
	return span / 1000 * time.Duration(in.Drift) / 1000
}

// plus adds a delay, which is not negative, and saturates: a sum that overflowed
// would be due at once.
func plus(d, delay time.Duration) time.Duration {
	if d > math.MaxInt64-delay {
		return math.MaxInt64
	}
	return d + delay
}

// baseDueIn returns how long it is until the lock is due, and why, without what drift and storms
// add. A slow clock of the holder, or a fast one of ours, delays; nothing hastens.
func (in Inputs) baseDueIn() (dueIn time.Duration, reason Reason) {
	dueIn, reason = plus(in.AutoUnlockAt.Add(in.Grace).Sub(in.Now), in.Allowance), ByDeadline
	if ahead := in.Ahead(in.Tolerance); ahead < 0 {
		dueIn, reason = plus(dueIn, -ahead), BySlow
	}
	if in.Late || !in.Measured {
		if patience := plus(in.Patience()+in.Grace-in.Age, in.PatienceAllowance); patience > dueIn {
			dueIn, reason = patience, ByPatience
		}
	}
	if kept := plus(in.NotBefore, in.PatienceAllowance); in.NotBefore != 0 && kept > dueIn {
		dueIn, reason = kept, ByStep
	}
	return dueIn, reason
}

// Patience is how long a holder may take between renewals, as far as its own times show.
func (in Inputs) Patience() time.Duration {
	patience := maxPatience
	if written := writtenAt(in.LockedAt, in.AliveAt, in.Renewed); !written.IsZero() {
		patience = in.AutoUnlockAt.Sub(written)
	}
	return min(max(patience, 0), maxPatience)
}

// AfterStep returns how long a step of our wall clock keeps the lock, in being what
// the verdict would depend on had the clock not stepped: until it would have been
// due, but no longer than for its patience and grace. The patience allowance is added to it.
func (in Inputs) AfterStep() time.Duration {
	old, _ := in.baseDueIn()
	return min(old-in.PatienceAllowance, in.Patience()+in.Grace)
}

// LogValue implements slog.LogValuer with the keys of the verdict's JSON, and without those that it omits. Without it,
// logfmt would write the verdict as one value with the names of the Go fields.
func (v Verdict) LogValue() slog.Value {
	return slog.GroupValue(appendFields(make([]slog.Attr, 0, 32), reflect.ValueOf(v))...)
}

func appendFields(attrs []slog.Attr, of reflect.Value) []slog.Attr {
	for field, value := range of.Fields() {
		key, omit, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			attrs = appendFields(attrs, value)
		case omit != "" && value.IsZero():
		case value.Kind() == reflect.String: // such as a Mode
			attrs = append(attrs, slog.String(key, value.String()))
		default:
			attrs = append(attrs, slog.Any(key, value.Interface()))
		}
	}
	return attrs
}
