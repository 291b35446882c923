package table

import (
	"bytes"
	"errors"

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
		n := 1
		for n < len(events) && events[n].KV.Mod == events[0].KV.Mod {
			n++
		}
		if events[0].KV.Mod > c.listing.known {
			c.applyRevision(events[:n], live, now)
		}
		events = events[n:]
	}
	for _, t := range c.touched {
		c.observed(t, live, now)
	}
	c.reschedule(now)
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
		// The uuid was written over without an acquisition: another holder, whose clock is not known.
		e.mark(measured|acquiredSeen|acquiredLive|aliveSeen, false)
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
	// No key remains, although the next event may create another lock of this name before reschedule runs.
	if orphan || e.has(unanswered) {
		c.reportGone(e, ev.KV.Mod, now, orphan)
	}
	e.Lock = protocol.Lock{Name: e.Name, Revision: e.Revision}
}

// listing is the state of the newest listing, finished or in progress.
type listing struct {
	// revision is the revision at which the keys are listed.
	revision int64
	// known is the revision of the last listing without a watch. Events up to it are dropped.
	known int64
	// resync is set if a watch continues during the listing, so that differences count as drift.
	resync bool
	// first is set until the first listing has ended: its locks do not count as acquired.
	first bool
	// deleted has the locks that were deleted while the listing was in progress; nil where none is.
	deleted map[string]struct{}
}

// begin starts a listing. With resync, a lock that was deleted after the revision, but before begin, would appear again:
// see Table.Begin.
func (c *core) begin(revision int64, resync bool) {
	if c.listing.deleted != nil { // the last one did not finish
		for _, e := range c.locks {
			e.mark(listed, false)
		}
	}
	l := &c.listing
	l.revision, l.resync, l.deleted = revision, resync, make(map[string]struct{})
	if !resync {
		l.known = revision
	}
}

// ErrOlder is the error of a listing that shows a lock older than it was seen before: etcd was restored or diverged.
var ErrOlder = errors.New("a listing shows a lock older than it was seen before")

func (c *core) list(locks []protocol.Lock) (err error) {
	now := c.now()
	for i := range locks {
		if c.listOne(&locks[i], now) {
			err = ErrOlder
		}
	}
	c.reschedule(now)
	return err
}

// listOne reports whether the lock is older than it was seen before.
func (c *core) listOne(l *protocol.Lock, now reading) (older bool) {
	e := c.locks[l.Name]
	if e == nil {
		if _, gone := c.listing.deleted[l.Name]; gone {
			return false
		}
		e = c.add(l.Name)
	}
	e.mark(listed, true)
	if e.Revision > c.listing.revision {
		return false
	}
	older = isOlder(e, l)
	if same(&e.Lock, l) {
		return older
	}
	c.touch(e)
	c.countUnseen(e, l, now)
	another := e.Token != l.Token || e.UUID() != l.UUID()
	if another {
		e.mark(measured, false)
		e.margin, e.rhythm = 0, 0
	}
	if another || e.LockedAt() != l.LockedAt() {
		e.mark(acquiredLive, false)
	}
	written := another || e.Token == 0 || l.Written > e.Written || older // an older one counts from now, too
	e.Lock = *l
	e.mark(deletedLast, false)
	if written {
		e.learned = now.mono
		e.mark(late, true)
	}
	return older
}

// isOlder reports whether a listing shows a lock older than it is known, which only a restore can do: one whose uuid was
// created earlier, or before it was deleted, whose deadline was written earlier, or whose newest key is older although none
// was deleted.
func isOlder(known *entry, listed *protocol.Lock) bool {
	if listed.Token != known.Token {
		orphaned := known.Token == 0 && known.has(deletedLast) // or the event of a uuid may be lost
		return listed.Token != 0 && (listed.Token < known.Token || orphaned && listed.Token < known.Revision)
	}
	return listed.AutoUnlockAt() != 0 && listed.Written < known.Written ||
		listed.Revision < known.Revision && listed.Keys >= known.Keys && !known.has(deletedLast)
}

// same reports whether a listing agrees with the known lock. Revisions are not sufficient: that of the listing may be
// lower, as a listing does not show deletions, and it may be equal although an earlier event was lost.
func same(known, listed *protocol.Lock) bool {
	return known.Token == listed.Token && known.UUID() == listed.UUID() &&
		known.Keys == listed.Keys && known.SameFields(listed) && listed.Revision <= known.Revision &&
		known.LockedAt() == listed.LockedAt() && known.AlertAt() == listed.AlertAt() &&
		known.AutoUnlockAt() == listed.AutoUnlockAt() && known.AliveAt() == listed.AliveAt() &&
		known.Hostname() == listed.Hostname() && known.Owner() == listed.Owner() &&
		known.Removable() == listed.Removable()
}

// countUnseen counts the changes of which the watch showed no events.
func (c *core) countUnseen(e *entry, l *protocol.Lock, now reading) {
	if c.listing.resync {
		c.totals.Drift++
	}
	switch {
	case e.Token == l.Token:
	case e.Token != 0:
		c.released(e, 0, false, now)
	case e.has(unanswered):
		c.reportGone(e, 0, now, false) // an orphan, where a lock is now
	}
	if l.Token != 0 && e.Token != l.Token && !c.listing.first {
		c.totals.Acquired++
	}
}

// end finishes a listing, and drops the locks that it did not contain, unless they are newer.
func (c *core) end() {
	now := c.now()
	for _, e := range c.locks {
		found := e.has(listed)
		e.mark(listed, false)
		if found || e.Revision > c.listing.revision {
			continue
		}
		if c.listing.resync {
			c.totals.Drift++
		}
		if e.Token != 0 {
			c.released(e, 0, false, now)
		}
		c.drop(e, 0, now)
	}
	c.listing.deleted = nil
	c.listing.first = false
}

// forget drops all locks, for example after a restore of etcd: they belong to the time before.
func (c *core) forget() {
	now := c.now()
	for _, e := range c.locks {
		c.drop(e, 0, now)
	}
	c.listing = listing{first: true}
}
