package protocol

import (
	"cmp"
	"slices"
)

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
