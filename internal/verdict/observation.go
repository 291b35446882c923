package verdict

import (
	"cmp"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Observation is what our own clocks know of a lock. Durations count from now, by our
// monotonic clock.
type Observation struct {
	// Measured reports whether a stamp of this acquisition was observed live, so
	// that the holder's clock was compared with ours. Offset is the holder's clock
	// minus our wall clock.
	Measured bool          `json:"measured"`
	Offset   time.Duration `json:"offset,omitempty"`
	// Late reports whether the last write was not observed live.
	Late bool `json:"late,omitempty"`
	// Age is how long ago we learned of the last write.
	Age time.Duration `json:"age"`
	// NotBefore is how long a step of our wall clock still keeps the lock, negative
	// from the end of that on; zero where none did.
	NotBefore time.Duration `json:"not_before,omitempty"`
	// StormDelay is what a storm adds.
	StormDelay time.Duration `json:"storm_delay,omitempty"`
}

// Ahead returns by how much the holder's clock is ahead of our wall clock, negative where it
// is behind. It is 0 where that was not measured, or is within the tolerance. Added to our
// time it gives that of the holder, by which a lock is overdue or expired.
func (o Observation) Ahead(tolerance time.Duration) time.Duration {
	if !o.Measured || o.Offset.Abs() <= tolerance {
		return 0
	}
	return o.Offset
}

// Later returns the observation as it is when another d has passed.
func (o Observation) Later(d time.Duration) Observation {
	o.Age += d
	if o.NotBefore != 0 {
		o.NotBefore = cmp.Or(o.NotBefore-d, -1)
	}
	return o
}

// writtenAt returns when the holder wrote the deadline in force, by its own clock, or the zero
// time where its times do not show that. Patience counts from then.
func writtenAt(lockedAt, aliveAt time.Time, renewed bool) time.Time {
	if aliveAt.IsZero() && !renewed {
		return lockedAt
	}
	return aliveAt
}

// Margin returns which share of the patience with its holder a lock had left when it was renewed:
// from 1 to 0, which is at or past the deadline. Patience is that of a verdict, but without a
// maximum. before is the lock before the renewal, and the times are by the holder's clock:
// renewed is that of the renewal, and arrived that of the write before, which counts where
// the lock's own times do not show when that was. ok reports whether the share is known.
func Margin(before *protocol.Lock, arrived, renewed protocol.Timestamp) (share float64, ok bool) {
	deadline := before.AutoUnlockAt()
	written := writtenAt(before.LockedAt().Time(), before.AliveAt().Time(), before.Renewed())
	if written.IsZero() {
		written = arrived.Time()
	}
	patience := deadline.Time().Sub(written)
	if written.IsZero() || renewed.IsZero() || patience <= 0 { // without a deadline it is negative
		return 0, false
	}
	return min(max(time.Duration(deadline-renewed).Seconds()/patience.Seconds(), 0), 1), true
}
