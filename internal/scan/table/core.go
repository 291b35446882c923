package table

import (
	"math"
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

// core is the table without its goroutine: no locking, no waiting.
type core struct {
	options Options
	clock   clock

	locks   map[string]*entry
	pending index
	ready   index
	overdue index
	touched []*entry
	gone    []Gone

	counts  [lock.NumStates]int
	backlog int
	totals  totals

	listing listing
}

// totals are counters since the start.
type totals struct {
	acquired, renewed, released, drift uint64
}

func newCore(o Options) *core {
	c := &core{options: o, locks: make(map[string]*entry), listing: listing{first: true}}
	c.clock = clock{base: time.Now(), wall: o.Now}
	c.clock.stepped(c.clock.read())
	pos := func(e *entry) *int32 { return &e.pos }
	c.pending = index{key: func(e *entry) int64 { return int64(e.wake) }, pos: pos}
	c.ready = index{key: func(e *entry) int64 { return int64(e.due) }, pos: pos}
	c.overdue = index{
		key: func(e *entry) int64 { return int64(overdueSince(e)) },
		pos: func(e *entry) *int32 { return &e.overduePos },
	}
	return c
}

// apply takes events in order. Those that the listing held already are dropped.
func (c *core) apply(events []Event) {
	now := c.now()
	for len(events) > 0 {
		n := sameRevision(events)
		if events[0].KV.Mod > c.listing.known {
			c.applyRevision(events[:n], now)
		}
		events = events[n:]
	}
	c.settle(now)
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
	was := basisOf(e)
	if ev.Deleted {
		c.deleteKey(e, ev, now)
	} else {
		e.Put(ev.KV)
	}
	switch {
	case e.Token != 0 && e.Token != was.token:
		c.totals.acquired++
		if e.phase == handed { // an orphan, that is; whoever took it finds out
			c.setPhase(e, waiting)
		}
	case e.Token != 0 && !ev.Deleted && ev.KV.Field == lock.FieldAutoUnlockAt && ev.KV.Mod > e.Token:
		c.totals.renewed++
	}
	c.rebase(e, was)
}

// basis is what the instant at which a lock is due rests on.
type basis struct {
	token     int64
	deadline  lock.Timestamp
	removable bool
}

func basisOf(e *entry) basis { return basis{e.Token, e.AutoUnlockAt(), e.Removable()} }

// rebase is called after a change; for an orphan every change counts.
func (c *core) rebase(e *entry, was basis) {
	if e.Token == 0 || basisOf(e) != was {
		c.forgetDue(e)
	}
}

func (c *core) add(name string) *entry {
	e := &entry{Lock: lock.Lock{Name: name}, state: none, due: unset}
	c.locks[name] = e
	return e
}

func (c *core) deleteKey(e *entry, ev *Event, now reading) {
	e.Delete(ev.KV.Field, ev.KV.Mod)
	if e.Keys > 0 {
		return
	}
	// Nothing is left, although the next event may bring another lock of this
	// name before settle could see it.
	if e.phase == handed {
		c.vanished(e, ev.KV.Mod, now)
	}
	e.Lock = lock.Lock{Name: e.Name, Revision: e.Revision}
}

// forgetDue is for a new deadline: the old one's instant, and what was tried,
// say nothing about it.
func (c *core) forgetDue(e *entry) {
	e.due = unset
	if e.phase != handed {
		c.setPhase(e, waiting)
	}
}

// released takes note of the end of a lock, seen at revision rev, or by a
// listing, rev being 0.
func (c *core) released(e *entry, rev int64, now reading) {
	if at := e.LockedAt(); !at.IsZero() {
		c.options.HoldDuration.Observe(max(0, time.Duration(now.wall-at)).Seconds())
	}
	if e.phase == handed {
		c.vanished(e, rev, now)
		return
	}
	c.totals.released++
}

// vanished tells whoever took the lock that it is gone.
func (c *core) vanished(e *entry, rev int64, now reading) {
	c.gone = append(c.gone, Gone{Name: e.Name, Token: e.Token, Revision: rev, At: now.wall.Time()})
	c.setPhase(e, waiting)
}

// touch is called before a lock changes. It takes the lock out of the indexes
// whose keys the change may move: a heap bears only one misplaced key at a time.
func (c *core) touch(e *entry) {
	if e.touched {
		return
	}
	e.touched = true
	c.touched = append(c.touched, e)
	c.overdue.remove(e)
	if e.phase == ready {
		c.setPhase(e, waiting)
	}
}

// settle brings the indexes in line with the locks that were touched.
func (c *core) settle(now reading) {
	for i, e := range c.touched {
		c.touched[i] = nil
		e.touched = false
		e.attempts = 0
		if e.Keys <= 0 {
			c.drop(e, e.Revision, now)
			continue
		}
		if e.phase == parked {
			c.forgetDue(e)
		}
		c.schedule(e, now)
	}
	c.touched = c.touched[:0]
}

// drop forgets a lock of which no key is left, since revision rev or, rev being
// 0, since nobody knows when.
func (c *core) drop(e *entry, rev int64, now reading) {
	if e.phase == handed {
		c.vanished(e, rev, now)
	}
	c.setState(e, none)
	c.setPhase(e, waiting)
	c.pending.remove(e)
	c.overdue.remove(e)
	delete(c.locks, e.Name)
	c.listing.bury(e.Name)
}

// schedule computes a lock's state and its next transition.
func (c *core) schedule(e *entry, now reading) {
	c.setState(e, e.State(now.wall))
	if since := overdueSince(e); since != 0 && since <= now.wall {
		c.overdue.set(e)
	} else {
		c.overdue.remove(e)
	}
	e.due = max(e.due, c.dueAt(e, now))
	if e.phase == handed && e.due <= now.mono {
		return // still with whoever took it
	}
	c.wait(e, now)
}

// overdueSince is from when on a lock is among those overdue: past its
// auto_unlock_at it is, whatever its owner made its alert_at. So nothing about
// a lock that is due changes by itself.
func overdueSince(e *entry) lock.Timestamp {
	since := e.OverdueSince()
	if a := e.AutoUnlockAt(); a != 0 {
		since = min(since, a)
	}
	return since
}

// dueAt returns when a lock is to be handed out, as far as its deadline says.
func (c *core) dueAt(e *entry, now reading) instant {
	switch {
	case !e.Removable():
		return never
	case e.Token != 0:
		return now.at(c.options.Due(&e.Lock))
	case e.due != unset:
		return e.due
	}
	return now.mono + instant(c.options.OrphanGrace)
}

// nextWake returns the next instant at which something about the lock changes
// by itself.
func (c *core) nextWake(e *entry, now reading) instant {
	wake := e.due
	for _, t := range [...]lock.Timestamp{e.AlertAt(), e.AutoUnlockAt()} {
		if t > now.wall {
			wake = min(wake, now.at(t))
		}
	}
	return wake
}

// wait puts e where it waits: for its next transition, or, where it is due,
// for somebody to take it.
func (c *core) wait(e *entry, now reading) {
	if e.due <= now.mono {
		c.setPhase(e, ready)
		c.ready.set(e)
		return
	}
	if e.phase == ready || e.phase == handed {
		c.setPhase(e, waiting)
	}
	if e.wake = c.nextWake(e, now); e.wake == never {
		c.pending.remove(e)
	} else {
		c.pending.set(e)
	}
}

// setPhase moves e out of the index of its old phase and keeps the backlog.
func (c *core) setPhase(e *entry, p phase) {
	if (e.phase == ready) != (p == ready) {
		if e.phase == ready {
			c.ready.remove(e)
		} else {
			c.pending.remove(e)
		}
	}
	c.backlog += inBacklog(p) - inBacklog(e.phase)
	e.phase = p
}

func inBacklog(p phase) int {
	if p == waiting {
		return 0
	}
	return 1
}

// none is the state of an entry that is not counted yet, or no longer.
const none = lock.NumStates

func (c *core) setState(e *entry, s lock.State) {
	if e.state != none {
		c.counts[e.state]--
	}
	if s != none {
		c.counts[s]++
	}
	e.state = s
}

// now reads the clocks and, where the wall clock stepped, computes every
// instant anew: of the old and the new one the later stands.
func (c *core) now() reading {
	now := c.clock.read()
	if c.clock.stepped(now) {
		for _, e := range c.locks {
			c.schedule(e, now)
		}
	}
	return now
}

// advance lets time pass: every lock whose transition came is scheduled anew.
func (c *core) advance() {
	now := c.now()
	for e := c.pending.top(); e != nil && e.wake <= now.mono; e = c.pending.top() {
		c.schedule(e, now)
	}
}

// sleep returns how long nothing changes by itself.
func (c *core) sleep() time.Duration {
	e := c.pending.top()
	if e == nil {
		return math.MaxInt64
	}
	return max(0, time.Duration(e.wake)-time.Since(c.clock.base))
}
