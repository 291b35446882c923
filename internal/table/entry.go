package table

import (
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// entry is a lock and its place in the indexes. A million of these are kept: every
// field counts.
type entry struct {
	protocol.Lock
	// wake is the key in the pending and the ready index: the next transition or,
	// where that has come, the due.
	wake instant
	// learned is when we learned of the last write of uuid or auto_unlock_at; for an
	// orphan, of any write.
	learned instant
	// notBefore is until when a step of our wall clock keeps, or kept, the lock; 0 for
	// none.
	notBefore instant
	// ahead is the holder's clock minus our steady one, if measured: steps of
	// our wall clock, however small, are not in it.
	ahead time.Duration
	// pos is the place in the pending or the ready index, overduePos that in the
	// overdue index.
	pos, overduePos int32
	marks           marks
	rhythm          rhythm
	attempts        uint8
	state           protocol.State
	phase           phase
	margin          margin
}

type marks uint16

const (
	measured     marks = 1 << iota // ahead is known
	late                           // the last write of uuid or auto_unlock_at was not observed live
	cameDue                        // counted among those that came due, for the deadline in force
	stormDelayed                   // a storm delays its due, for the deadline in force
	stormWaiting                   // and it waits for that now
	unanswered                     // returned by Take, and not answered yet
	writtenSeen                    // among the events being applied is a write of uuid or auto_unlock_at
	acquiredSeen                   // and one that is the acquisition
	aliveSeen                      // and one of alive_at
	deletedLast                    // Revision is that of a deletion
	touched                        // being changed
	listed                         // contained in the listing in progress
	slowRead                       // see View.Slow
)

func (e *entry) has(m marks) bool { return e.marks&m != 0 }

func (e *entry) mark(m marks, yes bool) {
	if e.marks &^= m; yes {
		e.marks |= m
	}
}

// phase is how far a lock is on its way to removal.
type phase uint8

const (
	waiting   phase = iota // not due, in pending where it has a next transition
	ready                  // due, in the ready index
	taken                  // returned by Take
	changed                // returned by Take, and due again since at another time: Postpone makes it ready
	retrying               // put back by Postpone, in pending
	suspended              // put back until it is modified; in pending like waiting
	paused                 // put back until the pauses change; likewise
	braked                 // put back until its brake ends; likewise
)

// kept reports whether Resume makes the lock available again.
func (p phase) kept() bool { return p >= paused }
