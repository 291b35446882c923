package table

import "github.com/etcd-unlocker/unlocker/internal/lock"

// listing is the state of the newest listing, finished or under way.
type listing struct {
	// revision is the one at which the keys are listed.
	revision int64
	// known is the one up to which events are known without a watch: that of
	// the last listing that none went on beside.
	known int64
	// beside is set where a watch goes on during the listing, so that a
	// difference is a drift.
	beside bool
	// first: nothing was known before, so that nothing is new.
	first bool
	// buried holds the locks that vanished while the listing was under way; nil
	// where none is.
	buried map[string]struct{}
}

func (l *listing) bury(name string) {
	if l.buried != nil {
		l.buried[name] = struct{}{}
	}
}

// begin starts a listing of all keys at a revision. Where beside is set, the
// table must have seen every event up to that revision and none behind it: a
// lock that vanished behind it, but before begin, would come back to life.
func (c *core) begin(revision int64, beside bool) {
	if c.listing.buried != nil { // the last one was broken off
		for _, e := range c.locks {
			e.listed = false
		}
	}
	l := &c.listing
	l.revision, l.beside, l.buried = revision, beside, make(map[string]struct{})
	if !beside {
		l.known = revision
	}
}

// list takes locks as they were at the revision of the listing.
func (c *core) list(locks []lock.Lock) {
	now := c.now()
	for i := range locks {
		c.listOne(&locks[i], now)
	}
	c.settle(now, true)
}

func (c *core) listOne(l *lock.Lock, now reading) {
	e := c.locks[l.Name]
	if e == nil {
		if _, gone := c.listing.buried[l.Name]; gone {
			return
		}
		e = c.add(l.Name)
	}
	e.listed = true
	if e.Revision > c.listing.revision {
		return
	}
	if e.state != none && same(&e.Lock, l) {
		return
	}
	c.touch(e)
	c.countUnseen(e, l, now)
	if e.Token != l.Token {
		e.marks &^= measured
	}
	e.Lock = *l
	e.seen = now.mono
	if e.marks&measured != 0 {
		// It was written some time since we last were current, maybe before an
		// outage that is over: that must count for it. Patience, which begins
		// now, is for owners who were never measured.
		e.seen = c.current
	}
}

// same tells whether a listing shows the lock as it is known. The revision of
// a listing may be lower: it does not show when keys were deleted. That of the
// lock may be as high although an event before it was lost.
func same(known, listed *lock.Lock) bool {
	return known.Token == listed.Token && known.UUID() == listed.UUID() && known.Keys == listed.Keys && listed.Revision <= known.Revision &&
		known.LockedAt() == listed.LockedAt() && known.AlertAt() == listed.AlertAt() &&
		known.AutoUnlockAt() == listed.AutoUnlockAt() && known.AliveAt() == listed.AliveAt() &&
		known.Hostname() == listed.Hostname() && known.Owner() == listed.Owner() &&
		known.Removable() == listed.Removable()
}

// countUnseen accounts for what must have happened while nobody watched.
func (c *core) countUnseen(e *entry, l *lock.Lock, now reading) {
	if c.listing.beside {
		c.totals.drift++
	}
	switch {
	case e.Token == l.Token:
	case e.Token != 0:
		c.released(e, 0, now)
	case e.marks&out != 0:
		c.vanished(e, 0, now) // an orphan, where a lock is now
	}
	if l.Token != 0 && e.Token != l.Token && !c.listing.first {
		c.totals.acquired++
	}
}

// end finishes a listing: what it did not hold is gone, unless it came later.
func (c *core) end() {
	now := c.now()
	for _, e := range c.locks {
		listed := e.listed
		e.listed = false
		if listed || e.Revision > c.listing.revision {
			continue
		}
		if c.listing.beside {
			c.totals.drift++
		}
		if e.Token != 0 {
			c.released(e, 0, now)
		}
		c.drop(e, 0, now)
	}
	c.listing.buried = nil
	c.listing.first = false
}

// forget drops all locks, as after a restore: what was known is of another
// history.
func (c *core) forget() {
	now := c.now()
	for _, e := range c.locks {
		c.drop(e, 0, now)
	}
	c.listing = listing{first: true}
}
