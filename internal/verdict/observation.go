package verdict

import "time"

// Observation is the clock observation of a lock by this replica. Durations are relative to the
// time of the observation.
type Observation struct {
	// Measured reports whether the holder's clock was compared with that of the daemon, at
	// an acquisition or a renewal that was observed live. Offset is the holder's clock minus
	// that of the daemon.
	Measured bool
	Offset   time.Duration
	// Age is the time, by the daemon's monotonic clock, since the last write of the lock was
	// observed, or since a listing found it.
	Age time.Duration
	// Earliest is the time, by the daemon's monotonic clock, until the latest due that was
	// computed for the present deadline; negative if that has passed. A verdict does not
	// find an earlier due.
	Earliest time.Duration
}

// Later returns the observation as it is when another d has passed.
func (o Observation) Later(d time.Duration) Observation {
	o.Age += d
	o.Earliest -= d
	return o
}
