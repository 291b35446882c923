package lock

import "time"

// Sight is what our own clocks know of a lock. Durations count from now.
type Sight struct {
	// Measured: the owner's clock was compared with ours, at the acquisition or
	// at a renewal that was seen live. Offset is the owner's clock minus ours.
	Measured bool
	Offset   time.Duration
	// Age is how long ago, by our monotonic clock, the last write of the lock
	// was seen, or a listing found it.
	Age time.Duration
	// Anchor is how long it is, by our monotonic clock, until the latest of the
	// instants that were ever computed for the deadline in force; negative
	// where that has passed.
	Anchor time.Duration
}

// Later returns the sight as it is after d more has passed.
func (s Sight) Later(d time.Duration) Sight {
	s.Age += d
	s.Anchor -= d
	return s
}

// Renewed tells whether auto_unlock_at was written after the acquisition.
func (l *Lock) Renewed() bool { return l.is.has(renewed) && l.fresh.has(FieldAutoUnlockAt) }
