package admin

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// outlook explains the state of a lock and what happens next, as far as that follows from
// the configuration.
func (a *Admin) outlook(l *lock.Lock, d Detail) []string {
	switch l.State(lock.TimestampOf(d.At)) {
	case lock.Malformed:
		return append(faults(l, d), neverRemoved)
	case lock.Orphaned:
		return []string{"There is no uuid: nobody holds it. Its fields are leftovers, such as a renewal after an unlock writes.",
			a.orphan(l.Name)}
	case lock.Undated:
		return []string{"There is no auto_unlock_at.", neverRemoved}
	case lock.Overdue:
		return []string{"It is held past its alert_at.", a.removal(l, d)}
	case lock.Expired:
		return []string{"Its holder did not renew it before its auto_unlock_at.", a.removal(l, d)}
	}
	return []string{a.removal(l, d)}
}

const neverRemoved = "It is never removed automatically."

func (a *Admin) orphan(name string) string {
	p, from := a.policy(name)
	if p.Mode != verdict.Enforce {
		return kept(p, from)
	}
	return fmt.Sprintf("The daemon removes them once they have not been modified for %s.", a.config.Reaper.OrphanGrace)
}

// late is how long a lock may be due without a fault: a daemon that has just found it
// gives its holder up to five minutes to renew.
const late = 6 * time.Minute

// removal explains when a lock with a deadline is removed.
func (a *Admin) removal(l *lock.Lock, d Detail) string {
	p, from := a.policy(l.Name)
	if p.Mode != verdict.Enforce {
		return kept(p, from)
	}
	due := l.AutoUnlockAt().Time().Add(p.Grace)
	at := fmt.Sprintf("%s (%s)", terminal.Time(due), terminal.Relative(due, d.At))
	switch past := d.At.Sub(due); {
	case past < 0:
		return fmt.Sprintf("Unless its holder renews it, the daemon removes it at %s, a grace of %s after auto_unlock_at.", at, p.Grace)
	case past < late:
		return fmt.Sprintf("It has been due for removal since %s. The daemon still waits during a hold, while it has not observed the lock "+
			"for long enough, or if the holder's clock is slow.", at)
	}
	return fmt.Sprintf("It has been due for removal since %s but still exists: no daemon is running, a hold is in force "+
		"(unlocker_reaper_hold), or removals fail (unlocker_forced_unlock_failures_total).", at)
}

// kept explains why a lock is not removed.
func kept(p verdict.Policy, from string) string {
	words := fmt.Sprintf("The daemon does not remove it: %s is %s.", from, p.Mode)
	if p.Mode == verdict.DryRun {
		words += " It reports when it would."
	}
	return words
}

// policy returns the policy that applies to a lock, and the key that sets its mode.
func (a *Admin) policy(name string) (p verdict.Policy, from string) {
	p, i := a.rules.Policy(name)
	if i < 0 {
		return p, "reaper.mode"
	}
	return p, fmt.Sprintf("policies[%d].mode (%s)", i, p.Match)
}

// maxFault bounds how much of an invalid value is quoted, in bytes.
const maxFault = 64

// faults returns the reasons for the state malformed.
func faults(l *lock.Lock, d Detail) []string {
	if l.Token == 0 {
		return []string{"There is no uuid: nobody holds it. It has keys that are not fields of a lock, so they are not leftovers either."}
	}
	var found []string
	for _, f := range d.Fields {
		if slices.Contains(d.Leftovers, f.Name) {
			continue
		}
		switch lock.ParseField([]byte(f.Name)) {
		case lock.FieldAlertAt, lock.FieldAliveAt, lock.FieldAutoUnlockAt, lock.FieldLockedAt:
			if _, err := lock.ParseTimestamp([]byte(f.Value)); err != nil {
				found = append(found, fmt.Sprintf("%s is %s: %s.", f.Name, terminal.QuoteAlways(lock.Clip([]byte(f.Value), maxFault)), err))
				if n, err := strconv.ParseInt(f.Value, 10, 64); err == nil && n/1000 > 1e9 {
					found = append(found, "It looks like milliseconds: the unit is seconds.")
				}
			}
		case lock.FieldUUID:
			if l.UUID() == "" {
				found = append(found, fmt.Sprintf("uuid has %d bytes: 1 to 256 are allowed.", len(f.Value)))
			}
		}
	}
	if len(found) == 0 {
		found = append(found, "A key has a lease: it is not a lock of this protocol.")
	}
	return found
}
