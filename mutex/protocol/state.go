package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// State is the state of a lock at an instant. A lock is in exactly one.
type State uint8

const (
	// Held is a lock before its alert_at and its auto_unlock_at.
	Held State = iota
	// Overdue is a lock past its alert_at.
	Overdue
	// Expired is a lock past its auto_unlock_at.
	Expired
	// Undated is a lock without auto_unlock_at. It is never removed automatically.
	Undated
	// Malformed is a lock with a timestamp or uuid that cannot be read, or with a field that has a
	// lease, or keys that are neither a lock nor an orphan. It is never removed automatically.
	Malformed
	// Orphaned are fields of a lock without a uuid, such as a blind renewal after an unlock leaves.
	Orphaned
	// NumStates is the number of states.
	NumStates
)

// String returns the name of the state in metrics and in the API.
func (s State) String() string {
	return [...]string{"held", "overdue", "expired", "undated", "malformed", "orphaned", "invalid"}[min(s, NumStates)]
}

// State returns the state of the lock at now. At exactly its alert_at or
// auto_unlock_at it is already past it.
func (l *Lock) State(now Timestamp) State {
	switch {
	case l.malformed():
		return Malformed
	case l.Token == 0:
		return Orphaned
	case l.AutoUnlockAt().IsZero():
		return Undated
	case now >= l.AutoUnlockAt():
		return Expired
	case !l.AlertAt().IsZero() && now >= l.AlertAt():
		return Overdue
	}
	return Held
}

// malformed reports whether the lock is malformed, which does not depend on the time.
func (l *Lock) malformed() bool {
	if !l.Valid() || l.leased != 0 {
		return true
	}
	if l.Token == 0 {
		return l.unknown() > 0
	}
	return l.bad&l.fresh != 0
}

// maxFault bounds how much of a value that cannot be read is kept, in bytes.
const maxFault = 64

// Fault says why the lock is malformed: which fields, their values, quoted and clipped, and the likely cause. It
// returns "" if the lock is not malformed.
func (l *Lock) Fault() string {
	if !l.malformed() {
		return ""
	}
	var all []string
	var values [len(faulty)]string
	if kept := l.rarely().faults; kept != nil {
		values = *kept
	}
	for i, f := range faulty {
		if (l.bad & l.fresh).has(f) {
			all = append(all, fmt.Sprintf("%s is %q: %s", f, values[i], whyBad(f, values[i])))
		}
	}
	for f := FieldUnknown + 1; int(f) < len(fieldNames); f++ {
		if l.leased.has(f) {
			all = append(all, fmt.Sprintf("%s has a lease, as no field of a lock has", f))
		}
	}
	switch {
	case len(all) > 0:
	case l.Token != 0:
		return "its name cannot be the name of a lock"
	default:
		return "there is no uuid, but there are keys that a lock does not leave behind"
	}
	return strings.Join(all, "; ")
}

// whyBad says what is wrong with a value, and what its client probably wrote.
func whyBad(f Field, value string) string {
	if f == FieldUUID {
		return fmt.Sprintf("not 1 to %d bytes", maxUUIDLen)
	}
	n, _ := strconv.ParseInt(value, 10, 64)
	for _, unit := range [...]string{"milliseconds", "microseconds", "nanoseconds"} {
		if n /= 1000; n >= minSeconds && n < maxSeconds {
			return fmt.Sprintf("it looks like %s, and the unit is seconds", unit)
		}
	}
	_, err := ParseTimestamp([]byte(value))
	return fmt.Sprint(err)
}

// Removable reports whether the lock may ever be removed automatically: it is not
// malformed, and it has an auto_unlock_at or is an orphan.
func (l *Lock) Removable() bool {
	return !l.malformed() && (l.Token == 0 || !l.AutoUnlockAt().IsZero())
}

// ByUrgency returns all states in the order in which people should look at locks.
func ByUrgency() [NumStates]State {
	return [...]State{Expired, Overdue, Malformed, Undated, Orphaned, Held}
}

// Urgency returns the place of a lock in a state in the order in which people should look at
// locks: the rank of the state, from 1, and the time that matters in it, 0 if there is none. Of
// locks of one rank, those with the earliest time come first, and those without one last.
func (l *Lock) Urgency(state State) (rank byte, at Timestamp) {
	at = cmp.Or(l.AlertAt(), l.AutoUnlockAt(), l.LockedAt())
	if state == Expired || state == Overdue {
		at = cmp.Or(l.AutoUnlockAt(), at)
	}
	states := ByUrgency()
	return byte(1 + slices.Index(states[:], state)), at
}
