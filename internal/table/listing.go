package table

import "github.com/etcd-unlocker/unlocker/internal/lock"

// listing is the state of the newest listing, finished or in progress.
type listing struct {
	// revision is the revision at which the keys are listed.
	revision int64
	// known is the revision of the last listing without a watch. Events up to it are
	// dropped.
	known int64
	// resync is set if a watch continues during the listing, so that differences count as
	// drift.
	resync bool
	// first is set until the first listing has ended: its locks do not count as acquired.
	first bool
	// deleted are the locks that were deleted while the listing is in progress; nil if no
	// listing is.
	deleted map[string]struct{}
}

func (l *listing) noteDeleted(name string) {
	if l.deleted != nil {
		l.deleted[name] = struct{}{}
	}
}

// begin starts a listing of all keys at a revision. With resync, the table must have every
// event up to that revision and none after it: a lock that was deleted after it, but before
// begin, would appear again.
func (c *core) begin(revision int64, resync bool) {
	if c.listing.deleted != nil { // the last listing did not finish
		for _, e := range c.locks {
			e.listed = false
		}
	}
	l := &c.listing
	l.revision, l.resync, l.deleted = revision, resync, make(map[string]struct{})
	if !resync {
		l.known = revision
	}
}

// list adds locks as they were at the revision of the listing.
func (c *core) list(locks []lock.Lock) {
	now := c.now()
	for i := range locks {
		c.listOne(&locks[i], now)
	}
	c.reschedule(now, true)
}

func (c *core) listOne(l *lock.Lock, now reading) {
	e := c.locks[l.Name]
	if e == nil {
		if _, gone := c.listing.deleted[l.Name]; gone {
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
		// The lock was written at an unknown time after the last live event, perhaps
		// before an outage, whose allowance must apply to it. Patience, which would begin
		// now, is only for holders whose clocks were never observed.
		e.seen = c.current
	}
}

// same reports whether a listing agrees with the known lock. Revisions are not sufficient:
// that of the listing may be lower, as a listing does not show deletions, and it may be equal
// although an earlier event was lost.
func same(known, listed *lock.Lock) bool {
	return known.Token == listed.Token && known.UUID() == listed.UUID() && known.Keys == listed.Keys && listed.Revision <= known.Revision &&
		known.LockedAt() == listed.LockedAt() && known.AlertAt() == listed.AlertAt() &&
		known.AutoUnlockAt() == listed.AutoUnlockAt() && known.AliveAt() == listed.AliveAt() &&
		known.Hostname() == listed.Hostname() && known.Owner() == listed.Owner() &&
		known.Removable() == listed.Removable()
}

// countUnseen counts the changes of which the watch showed no events.
func (c *core) countUnseen(e *entry, l *lock.Lock, now reading) {
	if c.listing.resync {
		c.totals.drift++
	}
	switch {
	case e.Token == l.Token:
	case e.Token != 0:
		c.released(e, 0, now)
	case e.marks&unanswered != 0:
		c.reportGone(e, 0, now) // an orphan, which is a lock now
	}
	if l.Token != 0 && e.Token != l.Token && !c.listing.first {
		c.totals.acquired++
	}
}

// end finishes a listing, and drops the locks that it did not contain, unless they are newer.
func (c *core) end() {
	now := c.now()
	for _, e := range c.locks {
		listed := e.listed
		e.listed = false
		if listed || e.Revision > c.listing.revision {
			continue
		}
		if c.listing.resync {
			c.totals.drift++
		}
		if e.Token != 0 {
			c.released(e, 0, now)
		}
		c.drop(e, 0, now)
	}
	c.listing.deleted = nil
	c.listing.first = false
}

// forget drops all locks, for example after a restore of etcd: they belong to another history.
func (c *core) forget() {
	now := c.now()
	for _, e := range c.locks {
		c.drop(e, 0, now)
	}
	c.listing = listing{first: true}
}
