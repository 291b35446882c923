package admin

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// outlook says what is wrong with a lock and what comes next, as far as that can be
// told without a daemon.
func (a *Admin) outlook(l *lock.Lock, d Detail) []string {
	switch l.State(lock.TimestampOf(d.At)) {
	case lock.Malformed:
		return append(faults(l, d), neverRemoved)
	case lock.Orphaned:
		return []string{"There is no uuid: nobody holds it. These are leftovers, as a renewal after the unlock leaves them.",
			a.orphan(l.Name)}
	case lock.Undated:
		return []string{"There is no auto_unlock_at.", neverRemoved}
	case lock.Overdue:
		return []string{"Its owner has it for longer than it meant to.", a.removal(l, d)}
	case lock.Expired:
		return []string{"Its owner did not renew it in time.", a.removal(l, d)}
	}
	return []string{a.removal(l, d)}
}

const neverRemoved = "It is never removed automatically."

func (a *Admin) orphan(name string) string {
	p, from := a.policy(name)
	if p.Mode != reaper.Enforce {
		return unremoved(p, from)
	}
	return fmt.Sprintf("The daemon removes them once nobody has written them for %s.", a.config.Reaper.OrphanGrace)
}

// late is how long a lock may be due without anything being wrong: a daemon that has
// just found it gives its owner up to five minutes to renew.
const late = 6 * time.Minute

// removal is for a lock that has a deadline.
func (a *Admin) removal(l *lock.Lock, d Detail) string {
	p, from := a.policy(l.Name)
	if p.Mode != reaper.Enforce {
		return unremoved(p, from)
	}
	due := l.AutoUnlockAt().Time().Add(p.Grace)
	at := fmt.Sprintf("%s on (%s): %s of grace behind auto_unlock_at.", terminal.Time(due), terminal.Relative(due, d.At), p.Grace)
	switch over := d.At.Sub(due); {
	case over < 0:
		return "Unless its owner renews it, the daemon removes it from " + at
	case over < late:
		return "The daemon removes it from " + at +
			" It waits for holds to end, until it has watched the owner for long enough, and for clocks that are off."
	}
	return fmt.Sprintf("It ought to be gone since %s (%s). Either no daemon runs, or one holds removals back "+
		"(unlocker_reaper_hold), or they fail (unlocker_forced_unlock_failures_total).", terminal.Time(due), terminal.Relative(due, d.At))
}

func unremoved(p reaper.Policy, from string) string {
	if p.Mode == reaper.DryRun {
		return fmt.Sprintf("The daemon does not remove it, it only says when it would: %s is dry-run.", from)
	}
	return fmt.Sprintf("The daemon does not remove it: %s is off.", from)
}

// policy returns what goes for a lock, and the key that says so.
func (a *Admin) policy(name string) (p reaper.Policy, from string) {
	p, says := a.rules.Policy(name)
	if says < 0 {
		return p, "reaper.mode"
	}
	return p, fmt.Sprintf("policies[%d].mode (%s)", says, p.Match)
}

// maxFault bounds what is quoted of a value that cannot be read.
const maxFault = 64

// faults are the reasons for the state malformed.
func faults(l *lock.Lock, d Detail) []string {
	if l.Token == 0 {
		return []string{"There is no uuid: nobody holds it. There are other keys than those of a lock, so that they are nobody's leftovers."}
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
					found = append(found, "Those are milliseconds, it seems; write seconds.")
				}
			}
		case lock.FieldUUID:
			if l.UUID() == "" {
				found = append(found, fmt.Sprintf("uuid has %d bytes: 1 to 256 are allowed.", len(f.Value)))
			}
		}
	}
	if len(found) == 0 {
		found = append(found, "A key of it carries a lease: it is not a lock of this protocol.")
	}
	return found
}
