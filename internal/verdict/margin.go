package verdict

import (
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

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
