package table

import "github.com/etcd-unlocker/unlocker/internal/lock"

// Event is a write or a deletion of one key.
type Event struct {
	// Name is the name of the lock as Layout.Split returns it. The table copies it.
	Name []byte
	// KV is the key. For a deletion only Field and Mod are used.
	KV      lock.KV
	Deleted bool
}

// apply applies events in order, and drops those that the listing contained. Only the
// arrival of live events is a clock observation.
func (c *core) apply(events []Event, live bool) {
	now := c.now()
	for len(events) > 0 {
		n := sameRevision(events)
		if events[0].KV.Mod > c.listing.known {
			c.applyRevision(events[:n], now)
		}
		events = events[n:]
	}
	for _, t := range c.touched {
		c.observed(t.entry, live, now)
	}
	c.reschedule(now, false)
	if live {
		c.current = now.mono
	}
}

// sameRevision returns how many of the first events have the same revision.
func sameRevision(events []Event) int {
	n := 1
	for n < len(events) && events[n].KV.Mod == events[0].KV.Mod {
		n++
	}
	return n
}

// applyRevision applies the events of one transaction. It counts releases first, while the
// fields that were deleted with the uuid are still known.
func (c *core) applyRevision(events []Event, now reading) {
	for i := range events {
		if ev := &events[i]; ev.Deleted && ev.KV.Field == lock.FieldUUID {
			if e := c.locks[string(ev.Name)]; e != nil && e.Token != 0 {
				c.touch(e)
				c.released(e, ev.KV.Mod, now)
			}
		}
	}
	for i := range events {
		c.applyOne(&events[i], now)
	}
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
	token := e.Token
	if ev.Deleted {
		c.deleteKey(e, ev, now)
	} else {
		e.Put(ev.KV)
	}
	if !ev.Deleted && (ev.KV.Field == lock.FieldAliveAt || ev.KV.Field == lock.FieldAutoUnlockAt) {
		e.marks |= aliveSeen
	}
	switch {
	case e.Token != 0 && e.Token != token:
		// Another holder has the lock now. If Take had returned it (as an orphan, or as a
		// lock whose end was not seen), the guarded transaction will fail.
		e.marks = e.marks&^(measured|aliveSeen|unanswered) | acquiredSeen
		c.totals.acquired++
		if e.phase == taken {
			c.setPhase(e, waiting)
		}
	case e.Token != 0 && !ev.Deleted && ev.KV.Field == lock.FieldAutoUnlockAt && ev.KV.Mod > e.Token:
		c.totals.renewed++
	}
}

func (c *core) deleteKey(e *entry, ev *Event, now reading) {
	e.Delete(ev.KV.Field, ev.KV.Mod)
	if e.Keys > 0 {
		return
	}
	// No key remains, although the next event may create another lock of this
	// name before reschedule runs.
	if e.marks&unanswered != 0 {
		c.reportGone(e, ev.KV.Mod, now)
	}
	e.Lock = lock.Lock{Name: e.Name, Revision: e.Revision}
}
