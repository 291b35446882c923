package table

import (
	"container/heap"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// entry is a lock and its place in the indexes. A million of these are kept: every field counts.
type entry struct {
	protocol.Lock
	// wake is the key in the pending and the ready index: the next transition or, where that has come, the due.
	wake instant
	// learned is when we learned of the last write of uuid or auto_unlock_at; for an orphan, of any write.
	learned instant
	// notBefore is until when a step of our wall clock keeps, or kept, the lock; 0 for none.
	notBefore instant
	// ahead is the holder's clock minus our steady one, if measured: steps of
	// our wall clock, however small, are not in it.
	ahead time.Duration
	// pos is the place in the pending or the ready index, overduePos that in the overdue index.
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
	late                           // the last write of uuid or auto_unlock_at was not observed live, or no observation counts for it
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
	acquiredLive                   // its acquisition was observed live, with locked_at as it still is
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

// index is a heap of entries that store their places in it, so that a change of a key takes O(log n).
type index struct {
	entries []*entry
	key     func(*entry) int64
	// pos returns where an entry stores its place in this index. Places begin at 1; 0
	// means that the entry is not in the index.
	pos func(*entry) *int32
}

func (x *index) Len() int { return len(x.entries) }

// Less orders equal keys by name, so that in a storm every replica delays the same locks.
func (x *index) Less(i, j int) bool {
	a, b := x.entries[i], x.entries[j]
	if ka, kb := x.key(a), x.key(b); ka != kb {
		return ka < kb
	}
	return a.Name < b.Name
}

func (x *index) Swap(i, j int) {
	x.entries[i], x.entries[j] = x.entries[j], x.entries[i]
	*x.pos(x.entries[i]), *x.pos(x.entries[j]) = int32(i+1), int32(j+1)
}

// Push is for container/heap; use set.
func (x *index) Push(v any) {
	e := v.(*entry)
	x.entries = append(x.entries, e)
	*x.pos(e) = int32(len(x.entries))
}

// Pop is for container/heap; use remove.
func (x *index) Pop() any {
	n := len(x.entries) - 1
	e := x.entries[n]
	x.entries[n] = nil
	x.entries = x.entries[:n]
	*x.pos(e) = 0
	return e
}

// set adds e to the index, or moves it after a change of its key.
func (x *index) set(e *entry) {
	if p := *x.pos(e); p != 0 {
		heap.Fix(x, int(p-1))
		return
	}
	heap.Push(x, e)
}

func (x *index) remove(e *entry) {
	if p := *x.pos(e); p != 0 {
		heap.Remove(x, int(p-1))
	}
}

func (x *index) clear() {
	for _, e := range x.entries {
		*x.pos(e) = 0
	}
	x.entries = nil
}

// top returns the entry with the smallest key, or nil.
func (x *index) top() *entry {
	if len(x.entries) == 0 {
		return nil
	}
	return x.entries[0]
}

// smallest calls f with the n entries with the smallest keys, in order. It takes O(n log n)
// and does not change the index.
func (x *index) smallest(n int, f func(*entry)) {
	var unused int32
	// The entries not visited whose parents were. Their places in it are not needed.
	next := &index{entries: slices.Clone(x.entries[:min(len(x.entries), 1)]), key: x.key, pos: func(*entry) *int32 { return &unused }}
	for ; n > 0 && next.Len() > 0; n-- {
		e := heap.Pop(next).(*entry)
		f(e)
		children := 2*int(*x.pos(e)) - 1
		for _, child := range x.entries[min(children, len(x.entries)):min(children+2, len(x.entries))] {
			heap.Push(next, child)
		}
	}
}
