package table

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// Event is one key written or deleted, in the order of etcd's history.
type Event struct {
	// Name is the lock's, as Layout.Split gives it; it is copied where kept.
	Name []byte
	// KV is the key. Of a deleted one only Field and Mod count.
	KV      lock.KV
	Deleted bool
}

// Gone tells that a lock which Take had given out was seen to vanish.
type Gone struct {
	Name string
	// Token is that of the lock given out; 0 for an orphan.
	Token int64
	// Revision is that of the deletion; 0 where only a listing told.
	Revision int64
	// At is when it was seen, by the wall clock.
	At time.Time
}

// apply takes events in order. Those that the listing held already are dropped.
// Only of live ones does the time of arrival tell anything.
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
		c.sighted(t.entry, live, now)
	}
	c.settle(now, false)
	if live {
		c.current = now.mono
	}
}

// sameRevision returns how many events, from the first on, are of one revision.
func sameRevision(events []Event) int {
	n := 1
	for n < len(events) && events[n].KV.Mod == events[0].KV.Mod {
		n++
	}
	return n
}

// applyRevision takes what one transaction did. Releases go first, as long as
// the other fields, deleted with the uuid and before it, tell of the lock.
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
		// What was given out, an orphan or a lock whose end was lost, is another's
		// now; whoever took it finds out.
		e.marks = e.marks&^(measured|aliveSeen|out) | acquiredSeen
		c.totals.acquired++
		if e.phase == handed {
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
	// Nothing is left, although the next event may bring another lock of this
	// name before settle could see it.
	if e.marks&out != 0 {
		c.vanished(e, ev.KV.Mod, now)
	}
	e.Lock = lock.Lock{Name: e.Name, Revision: e.Revision}
}
