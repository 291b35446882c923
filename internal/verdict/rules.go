package verdict

import (
	"cmp"
	"slices"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Mode is what happens to a lock that is due.
type Mode = string

// The modes, with their names in the configuration.
const (
	Enforce Mode = "enforce" // remove it
	DryRun  Mode = "dry-run" // log and count that it would be removed
	Off     Mode = "off"     // watch and alert only
)

// Policy applies to the locks whose names match a glob, in which "*" does not match a slash and
// "**" does.
type Policy = config.Policy

// Rules are the part of the configuration on which verdicts, storms and holds depend. They are valid: package config
// has checked them.
type Rules struct {
	// Reaper has the mode, the grace and the brake of locks that no policy matches. If several policies match, the
	// first one applies.
	config.Reaper
	Policies []Policy
	// Drift is by how many parts per million the clock of a holder may run slow.
	Drift int
}

// maxDrift is how fast NTP slews a clock.
const maxDrift = 500

// RulesFromConfig returns the rules that the configuration describes.
func RulesFromConfig(c config.Config) Rules { return Rules{c.Reaper, c.Policies, maxDrift} }

// MinGrace returns the shortest grace of any lock.
func (r Rules) MinGrace() time.Duration {
	shortest := r.Grace
	for _, p := range r.Policies {
		shortest = min(shortest, p.Grace)
	}
	return shortest
}

// Policy returns the policy that applies to a lock, and its index in Policies. The index is -1 if
// the mode is that of the rules: no policy matches, or the mode of the rules is more restrictive
// than that of the policy. So the mode of the rules can stop all removals.
func (r Rules) Policy(name string) (p Policy, index int) {
	for i, p := range r.Policies {
		if !doublestar.MatchUnvalidated(p.Match, name) {
			continue
		}
		if beyond(p.Mode, r.Mode) {
			p.Mode = r.Mode
			return p, -1
		}
		return p, i
	}
	return Policy{Mode: r.Mode, Grace: r.Grace, Brake: r.Brake}, -1
}

// Urgent returns the state by which a lock is ordered by urgency. One that expired and that a policy keeps needs no
// person: it comes with those that are held.
func (r Rules) Urgent(name string, s protocol.State) protocol.State {
	if s != protocol.Expired {
		return s
	}
	if p, i := r.Policy(name); i >= 0 && p.Mode != Enforce {
		return protocol.Held
	}
	return s
}

// Brakes reports whether a brake applies to any lock.
func (r Rules) Brakes() bool {
	return r.Brake.MaxForced > 0 || slices.ContainsFunc(r.Policies, func(p Policy) bool { return p.Brake.MaxForced > 0 })
}

// beyond reports whether m is less restrictive than other.
func beyond(m, other Mode) bool {
	return other == Off && m != Off || other == DryRun && m == Enforce
}

// Allowance returns for how long outages kept the holder of a lock from renewing it: probe.Probe.Allowance.
type Allowance func(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration)

// Allow sets the allowances of a lock with a uuid. now is the time of its inputs, with a monotonic reading.
func (in *Inputs) Allow(allowance Allowance, written int64, now time.Time) {
	stamped := !writtenAt(in.LockedAt, in.AliveAt, in.Renewed).IsZero()
	in.Allowance, in.PatienceAllowance = allowance(written, now.Add(-in.Age), stamped)
}

// Inputs returns what the verdict on a lock depends on, except for OrphanDue, the brake,
// the allowances and Leader, which neither the lock nor the rules know.
func (r Rules) Inputs(l *protocol.Lock, o Observation, now time.Time) Inputs {
	p, _ := r.Policy(l.Name)
	return Inputs{
		Now:          now.UTC(),
		LockedAt:     l.LockedAt().Time(),
		AutoUnlockAt: l.AutoUnlockAt().Time(),
		AliveAt:      l.AliveAt().Time(),
		Renewed:      l.Renewed(),
		Fault:        l.Fault(),
		Removable:    l.Removable(),
		Token:        l.Token,
		Revision:     l.Revision,
		Observation:  o,
		Policy:       p.Match,
		Mode:         p.Mode,
		Grace:        p.Grace,
		Tolerance:    r.ClockTolerance,
		StandbyDelay: r.StandbyDelay,
		Drift:        r.Drift,
	}
}

// Storms reports whether the next lock that comes due is delayed, came being the number of those that came due within
// the window, of dated locks: then a fault between their holders and etcd is likelier than that many deaths.
func (r Rules) Storms(came, dated int) bool {
	s := r.Storm
	return s.MinLocks > 0 && came >= s.MinLocks && float64(came) >= s.Fraction*float64(dated)
}

// Pause is what keeps a lock while a person has paused the removal of some locks.
type Pause struct {
	// Until is when it ends by itself; zero if there is none.
	Until time.Time
	// Words say whose it is and why.
	Words string
}

// Observation is what our own clocks know of a lock. Durations count from now, by our
// monotonic clock.
type Observation struct {
	// Measured reports whether a stamp of this acquisition was observed live, so that the holder's
	// clock was compared with ours. Offset is the holder's clock minus our wall clock.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	// Late reports whether the last write was not observed live, or had no stamp, and what was observed is not of the
	// acquisition.
	Late bool `json:"late,omitempty"`
	// Age is how long ago we learned of the last write.
	Age time.Duration `json:"age"`
	// NotBefore is how long a step of our wall clock still keeps the lock, negative
	// from the end of that on; zero where none did.
	NotBefore time.Duration `json:"not_before,omitempty"`
	// StormDelay is what a storm adds.
	StormDelay time.Duration `json:"storm_delay,omitempty"`
}

// Ahead returns by how much the holder's clock is ahead of our wall clock, negative where it
// is behind. It is 0 where that was not measured, or is within the tolerance. Added to our
// time it gives that of the holder, by which a lock is overdue or expired.
func (o Observation) Ahead(tolerance time.Duration) time.Duration {
	if !o.Measured || o.Offset.Abs() <= tolerance {
		return 0
	}
	return o.Offset
}

// Later returns the observation as it is when another d has passed.
func (o Observation) Later(d time.Duration) Observation {
	o.Age += d
	if o.NotBefore != 0 {
		o.NotBefore = cmp.Or(o.NotBefore-d, -1)
	}
	return o
}

// writtenAt returns when the holder wrote the deadline in force, by its own clock, or the zero
// time where its times do not show that. Patience counts from then.
func writtenAt(lockedAt, aliveAt time.Time, renewed bool) time.Time {
	if aliveAt.IsZero() && !renewed {
		return lockedAt
	}
	return aliveAt
}

// Margin returns which share of the patience with its holder a lock had left when it was renewed:
// from 1 to 0, which is at or past the deadline. Patience is that of a verdict, but without a
// maximum. before is the lock before the renewal, and the times are by the holder's clock:
// renewed is that of the renewal, and arrived that of the write before, which counts where
// the lock's own times do not show when that was. ok reports whether the share is known.
func Margin(before *protocol.Lock, arrived, renewed protocol.Timestamp) (share float64, ok bool) {
	deadline := before.AutoUnlockAt()
	written := writtenAt(before.LockedAt().Time(), before.AliveAt().Time(), before.Renewed())
	if written.IsZero() {
		written = arrived.Time()
	}
	patience := deadline.Time().Sub(written)
	if written.IsZero() || renewed.IsZero() || patience <= 0 { // without a deadline it is negative
		return 0, false
	}
	return min(max(time.Duration(deadline-renewed).Seconds()/patience.Seconds(), 0), 1), true
}
