package table

import (
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// entry is a lock and its places in the indexes. It is kept small, as there may be a million.
type entry struct {
	lock.Lock
	// due is the monotonic instant from which Take may return the lock. While the deadline
	// of the lock stays the same, due only moves later.
	due instant
	// wake is the next transition of the lock, its key in the pending index.
	wake instant
	// seen is when the last write was seen, or a listing found the lock.
	seen instant
	// ahead is the holder's clock minus the daemon's monotonic clock, if measured. It is
	// independent of steps of the daemon's wall clock.
	ahead time.Duration
	// pos is the place in the pending or the ready index, overduePos that in the overdue
	// index; see index.
	pos, overduePos int32
	attempts        uint8
	state           lock.State
	phase           phase
	marks           marks
	touched         bool
	// listed is set if the listing in progress contained the lock.
	listed bool
}

// marks are flags of a lock.
type marks uint8

const (
	measured     marks = 1 << iota // ahead is known
	late                           // was past its deadline when a listing found it
	counted                        // is counted among the locks that came due
	unanswered                     // was returned by Take, and not answered yet
	acquiredSeen                   // the events being applied contain the acquisition
	aliveSeen                      // the events being applied contain alive_at or auto_unlock_at
)

// phase is the progress of a lock towards its removal.
type phase uint8

const (
	waiting   phase = iota // not due; in pending if it has a next transition
	ready                  // due; in the ready index
	taken                  // returned by Take
	retrying               // put back by Postpone; in pending
	suspended              // put back until it is modified; in pending if it has a next transition
)

// instant is monotonic time in nanoseconds since the table was made.
type instant int64

const (
	never instant = math.MaxInt64
	// unset is before every due, including those from before the table was made.
	unset instant = math.MinInt64
)

// clock reads the monotonic and the wall clock.
type clock struct {
	base time.Time
	wall func() time.Time
	// last is wall minus monotonic time at the last step, or at the start.
	last time.Duration
}

// reading is the time of both clocks.
type reading struct {
	mono instant
	wall lock.Timestamp
}

func (c *clock) read() reading {
	return reading{mono: instant(time.Since(c.base)), wall: lock.TimestampOf(c.wall())}
}

// maxDrift is the maximum divergence of wall and monotonic time that does not count as a
// step of the wall clock.
const maxDrift = 2 * time.Second

// stepped reports whether the wall clock stepped since the last reported step, and by how
// much. Slow drift adds up to a step as well.
func (c *clock) stepped(now reading) (step time.Duration, stepped bool) {
	apart := time.Duration(now.wall) - time.Duration(now.mono)
	step = apart - c.last
	if -maxDrift <= step && step <= maxDrift {
		return 0, false
	}
	c.last = apart
	return step, true
}

// at converts a deadline of the wall clock to a monotonic instant.
func (r reading) at(t lock.Timestamp) instant {
	return r.mono + instant(t-r.wall)
}

// time converts a monotonic instant to wall-clock time.
func (r reading) time(i instant) time.Time {
	return r.wall.Time().Add(time.Duration(i - r.mono))
}
