package reaper

import (
	"errors"
	"fmt"
	"time"

	"github.com/bmatcuk/doublestar/v4"

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

// Policy is what goes for locks whose names match a glob: "*" stops at a slash,
// "**" does not.
type Policy struct {
	Match string
	Mode  Mode
	Grace time.Duration
}

// Rules are the part of the configuration that verdicts depend on.
type Rules struct {
	// Mode and Grace go for locks that no policy matches; of the policies the
	// first that matches wins.
	Mode     Mode
	Grace    time.Duration
	Policies []Policy
	// Tolerance is how far an owner's clock may be off before that counts; no
	// grace may be less.
	Tolerance time.Duration
	// Settle is how long owners get to renew after we, or they, could not.
	Settle time.Duration
	// StandbyDelay is how much later than the leader a replica acts.
	StandbyDelay time.Duration
}

func (r Rules) validate() error {
	if r.Tolerance < 0 || r.Settle < 0 || r.StandbyDelay < 0 {
		return errors.New("reaper: tolerance, settle and standby delay must not be negative")
	}
	for _, p := range append([]Policy{{Match: "**", Mode: r.Mode, Grace: r.Grace}}, r.Policies...) {
		switch {
		case p.Mode != Enforce && p.Mode != DryRun && p.Mode != Off:
			return fmt.Errorf("reaper: unknown mode %q", p.Mode)
		case p.Grace < r.Tolerance:
			return fmt.Errorf("reaper: grace %s is less than the clock tolerance %s", p.Grace, r.Tolerance)
		case !doublestar.ValidatePattern(p.Match):
			return fmt.Errorf("reaper: policy matches by the malformed glob %q", p.Match)
		}
	}
	return nil
}

// LeastGrace returns the least grace of any lock.
func (r Rules) LeastGrace() time.Duration {
	least := r.Grace
	for _, p := range r.Policies {
		least = min(least, p.Grace)
	}
	return least
}

// idle tells whether nothing is to be done about any lock.
func (r Rules) idle() bool { return r.Mode == Off }

// Policy returns what goes for a lock, and which of Policies says so: -1 for the
// rules' own Mode, which is also the most that a policy may do, so that all
// removals can be stopped in one place.
func (r Rules) Policy(name string) (p Policy, says int) {
	for i, p := range r.Policies {
		if !doublestar.MatchUnvalidated(p.Match, name) {
			continue
		}
		if p.Mode.beyond(r.Mode) {
			p.Mode = r.Mode
			return p, -1
		}
		return p, i
	}
	return Policy{Mode: r.Mode, Grace: r.Grace}, -1
}

// beyond tells whether m does more than another mode.
func (m Mode) beyond(other Mode) bool {
	return other == Off && m != Off || other == DryRun && m == Enforce
}

// DueIn returns how long it is until a lock with a deadline is due, without
// what outages add: the least that a verdict will find.
func (r Rules) DueIn(l *lock.Lock, s lock.Sight, now lock.Timestamp) time.Duration {
	return r.inputs(l, s, now.Time()).dueIn()
}

// inputs collects what the verdict on a lock depends on, but for what is not in
// the lock, the sight or the rules.
func (r Rules) inputs(l *lock.Lock, s lock.Sight, now time.Time) Inputs {
	p, _ := r.Policy(l.Name)
	return Inputs{
		Now:          now.UTC(),
		LockedAt:     l.LockedAt().Time(),
		AutoUnlockAt: l.AutoUnlockAt().Time(),
		AliveAt:      l.AliveAt().Time(),
		Renewed:      l.Renewed(),
		Removable:    l.Removable(),
		Token:        l.Token,
		Revision:     l.Revision,
		Measured:     s.Measured,
		Offset:       s.Offset,
		Age:          s.Age,
		Anchor:       s.Anchor,
		Policy:       p.Match,
		Mode:         p.Mode,
		Grace:        p.Grace,
		Tolerance:    r.Tolerance,
		Settle:       r.Settle,
		StandbyDelay: r.StandbyDelay,
	}
}
