package table

import (
	"bytes"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Event is a write or a deletion of one key.
type Event struct {
	// Name is the name of the lock as Layout.Split returns it. The table copies it.
	Name []byte
	// KV is the key. For a deletion only Field and Mod are used.
	KV      protocol.KV
	Deleted bool
}

// apply applies events in order, and drops those that the listing contained. Only the
// arrival of live events is a clock observation.
func (c *core) apply(events []Event, live bool) {
	now := c.now()
	for len(events) > 0 {
		n := sameRevision(events)
		if events[0].KV.Mod > c.listing.known {
			c.applyRevision(events[:n], live, now)
		}
		events = events[n:]
	}
	for _, t := range c.touched {
		c.observed(t.entry, live, now)
	}
	c.reschedule(now)
}

// sameRevision returns how many of the first events have the same revision.
func sameRevision(events []Event) int {
	n := 1
	for n < len(events) && events[n].KV.Mod == events[0].KV.Mod {
		n++
	}
	return n
}

// applyRevision applies the events of one transaction. First it looks at the locks that the
// transaction releases or renews, while what they were is still known.
func (c *core) applyRevision(events []Event, live bool, now reading) {
	for i := range events {
		ev := &events[i]
		released := ev.Deleted && ev.KV.Field == protocol.FieldUUID
		renewed := !ev.Deleted && ev.KV.Field == protocol.FieldAutoUnlockAt && live
		if !released && !renewed {
			continue
		}
		e := c.locks[string(ev.Name)]
		switch {
		case e == nil || e.Token == 0:
		case released:
			c.released(e, ev.KV.Mod, deletions(events, i) == int(e.Keys), now)
		default:
			c.renewals = append(c.renewals, renewalOf(e))
		}
	}
	for i := range events {
		c.applyOne(&events[i], now)
	}
	c.observeMargins(now)
}

// deletions returns how many keys of the lock of one event its neighbors delete, too. A transaction deletes the keys of
// a lock one after the other.
func deletions(events []Event, at int) int {
	same := func(i int) bool { return events[i].Deleted && bytes.Equal(events[i].Name, events[at].Name) }
	from, to := at, at+1
	for from > 0 && same(from-1) {
		from--
	}
	for to < len(events) && same(to) {
		to++
	}
	return to - from
}

func (c *core) applyOne(ev *Event, now reading) {
	e := c.locks[string(ev.Name)]
	if e == nil {
		if ev.Deleted {
			return // never seen, or already known to be gone
		}
		e = c.add(string(ev.Name))
	}
	c.touch(e)
	token, over := e.Token, false
	if ev.Deleted {
		c.deleteKey(e, ev, now)
	} else {
		over = e.write(ev.KV)
	}
	e.mark(deletedLast, ev.Deleted)
	switch {
	case e.Token != 0 && e.Token != token:
		// What Take returned, an orphan or a lock whose end was not seen, is now
		// another holder's lock; the guarded transaction will find out.
		e.mark(measured|aliveSeen|unanswered, false)
		e.mark(acquiredSeen, true)
		e.margin, e.rhythm = 0, 0
		c.totals.Acquired++
		c.options.Acquired(&e.Lock)
		c.setPhase(e, waiting)
	case over:
		// The uuid was written over without an acquisition: another holder, whose clock
		// is not known.
		e.mark(measured|acquiredSeen|aliveSeen, false)
		e.margin, e.rhythm = 0, 0
	case e.Token != 0 && !ev.Deleted && ev.KV.Field == protocol.FieldAutoUnlockAt && ev.KV.Mod > e.Token:
		c.totals.Renewed++
	}
}

// write applies a write, and reports whether that wrote another uuid over one.
func (e *entry) write(kv protocol.KV) (over bool) {
	uuid := ""
	switch kv.Field {
	case protocol.FieldUUID:
		uuid = e.UUID()
		e.mark(writtenSeen, true)
	case protocol.FieldAutoUnlockAt:
		e.mark(writtenSeen, true)
	case protocol.FieldAliveAt:
		e.mark(aliveSeen, true)
	}
	e.Put(kv)
	return kv.Field == protocol.FieldUUID && e.UUID() != uuid
}

func (c *core) deleteKey(e *entry, ev *Event, now reading) {
	orphan := e.State(now.wall) == protocol.Orphaned && c.dueAt(e, now) <= now.mono
	e.Delete(ev.KV.Field, ev.KV.Mod)
	if e.Keys > 0 {
		return
	}
	// No key remains, although the next event may create another lock of this
	// name before reschedule runs.
	if orphan || e.has(unanswered) {
		c.reportGone(e, ev.KV.Mod, now, orphan)
	}
	e.Lock = protocol.Lock{Name: e.Name, Revision: e.Revision}
}
