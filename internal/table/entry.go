package table

import (
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// entry is a lock and where it stands in the indexes. A million of these are
// kept: every field counts.
type entry struct {
	lock.Lock
	// due is the monotonic instant from which Take may return the lock. It only
	// moves later while the lock's deadline stays the same.
	due instant
	// wake is the lock's next transition, its key in the pending index.
	wake instant
	// seen is when the last write was seen, or a listing found the lock.
	seen instant
	// ahead is the holder's clock minus our monotonic one, if measured: steps of
	// our wall clock, however small, are not in it.
	ahead time.Duration
	// pos is the place in the pending or the ready index, overduePos that in
	// the overdue index.
	pos, overduePos int32
	attempts        uint8
	state           lock.State
	phase           phase
	marks           marks
	touched         bool
	// listed: the listing under way held the lock.
	listed bool
}

// marks are flags of a lock.
type marks uint8

const (
	measured     marks = 1 << iota // ahead is known
	late                           // past its deadline when a listing found it
	counted                        // among those that came due
	unanswered                     // given out by Take, and not answered yet
	acquiredSeen                   // among the events being applied is the acquisition
	aliveSeen                      // and a write of alive_at or auto_unlock_at
)

// phase is how far a lock is on its way to removal.
type phase uint8

const (
	waiting   phase = iota // not due, in pending where it has a next transition
	ready                  // due, in the ready index
	taken                  // given out by Take
	retrying               // put back by Postpone, in pending
	suspended              // put back until it is modified; in pending like waiting
)

// instant is monotonic time in nanoseconds since the table was made.
type instant int64

const (
	never instant = math.MaxInt64
	// unset lies before every deadline, also of those that passed before the
	// table was made.
	unset instant = math.MinInt64
)

// clock reads both clocks at once.
type clock struct {
	base time.Time
	wall func() time.Time
	// last is wall minus monotonic time when steps were last looked for.
	last time.Duration
}

// reading is one look at both clocks.
type reading struct {
	mono instant
	wall lock.Timestamp
}

func (c *clock) read() reading {
	return reading{mono: instant(time.Since(c.base)), wall: lock.TimestampOf(c.wall())}
}

// maxDrift is how far wall and monotonic time may diverge before that counts as a
// step of the wall clock.
const maxDrift = 2 * time.Second

// stepped reports whether, and by how much, the wall clock stepped since the last
// call that reported a step. Slow drift adds up to a step as well.
func (c *clock) stepped(now reading) (step time.Duration, stepped bool) {
	apart := time.Duration(now.wall) - time.Duration(now.mono)
	step = apart - c.last
	if -maxDrift <= step && step <= maxDrift {
		return 0, false
	}
	c.last = apart
	return step, true
}

// at turns a wall-clock deadline into a monotonic instant.
func (r reading) at(t lock.Timestamp) instant {
	return r.mono + instant(t-r.wall)
}

// time turns a monotonic instant into one of our wall clock.
func (r reading) time(i instant) time.Time {
	return r.wall.Time().Add(time.Duration(i - r.mono))
}
