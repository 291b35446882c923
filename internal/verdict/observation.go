package verdict

import "time"

// Observation is what our own clocks know of a lock. Durations count from now.
type Observation struct {
	// Measured reports whether the holder's clock was compared with ours, at the
	// acquisition or at a renewal that was observed live. Offset is the holder's
	// clock minus ours.
	Measured bool
	Offset   time.Duration
	// Age is how long ago, by our monotonic clock, the last write of the lock was
	// observed, or a listing found it.
	Age time.Duration
	// Earliest is how long it is, by our monotonic clock, until the latest due
	// ever computed for the deadline in force, which is the earliest that a
	// verdict may find; negative once that has passed.
	Earliest time.Duration
}

// Later returns the observation as it is after another d has passed.
func (o Observation) Later(d time.Duration) Observation {
	o.Age += d
	o.Earliest -= d
	return o
}
