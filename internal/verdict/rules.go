package verdict

import (
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

// Allowance returns for how long outages kept the holder of a lock from renewing it, as far as that
// counts for the deadline and for the patience: the lock was last written at a revision, which was
// learned at a time, with a stamp of its holder or without one. It is probe.Probe.Allowance.
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
