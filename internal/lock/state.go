package lock

// State is what a lock is at an instant. The states exclude each other.
type State uint8

const (
	// Held is a lock within its times.
	Held State = iota
	// Overdue is past alert_at.
	Overdue
	// Expired is past auto_unlock_at and still there.
	Expired
	// Undated has no auto_unlock_at; never removed automatically.
	Undated
	// Malformed has a timestamp or uuid that cannot be read, a key with a lease,
	// or keys that make neither a lock nor an orphan; never removed
	// automatically.
	Malformed
	// Orphaned is fields of a lock without its uuid, as a blind renewal after an
	// unlock leaves them.
	Orphaned
	// NumStates is the number of states.
	NumStates
)

// String returns the state as it stands in metrics and in the API.
func (s State) String() string {
	return [...]string{"held", "overdue", "expired", "undated", "malformed", "orphaned", "invalid"}[min(s, NumStates)]
}

// State returns the lock's state at now. A lock is past an instant from the
// instant on.
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

// malformed holds for the states that time does not change.
func (l *Lock) malformed() bool {
	if !l.Valid() || l.leased != 0 {
		return true
	}
	if l.Token == 0 {
		return l.unknown() > 0
	}
	return l.bad&l.fresh != 0
}

// Removable tells whether the lock may ever be removed automatically: its
// deadline can be read, or it is an orphan.
func (l *Lock) Removable() bool {
	return !l.malformed() && (l.Token == 0 || !l.AutoUnlockAt().IsZero())
}
