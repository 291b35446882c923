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
	touched []touched
	gone    []Gone

	counts  [lock.NumStates]int
	backlog int
	totals  totals

	listing listing
	// current is when events last came as they happened.
	current instant
	cameDue window
	hosts   hosts
}

// totals are counters since the start.
type totals struct {
	acquired, renewed, released, drift uint64
}

func newCore(o Options) *core {
	c := &core{options: o, locks: make(map[string]*entry), listing: listing{first: true}, hosts: make(hosts)}
	c.cameDue.width = instant(o.Window)
	c.clock = clock{base: time.Now(), wall: o.Now}
	c.clock.stepped(c.clock.read())
	pos := func(e *entry) *int32 { return &e.pos }
	c.pending = index{key: func(e *entry) int64 { return int64(e.wake) }, pos: pos}
	c.ready = index{key: func(e *entry) int64 { return int64(e.due) }, pos: pos}
	c.overdue = index{
		key: func(e *entry) int64 { return int64(e.OverdueSince()) },
		pos: func(e *entry) *int32 { return &e.overduePos },
	}
	return c
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

// touched is a lock that is being changed, and what its due rested on before.
type touched struct {
	*entry
	was basis
}

// basis is what the instant at which a lock is due rests on.
type basis struct {
	token    int64
	deadline lock.Timestamp
}

func basisOf(e *entry) basis { return basis{e.Token, e.AutoUnlockAt()} }

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
	if e.marks&out != 0 {
		c.vanished(e, ev.KV.Mod, now)
	}
	e.Lock = lock.Lock{Name: e.Name, Revision: e.Revision}
}

// forgetDue is for a new deadline: the old one's instant, and what was tried,
// say nothing about it.
func (c *core) forgetDue(e *entry) {
	e.due = unset
	e.marks &^= late | counted
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
	if e.marks&out != 0 {
		c.vanished(e, rev, now)
		return
	}
	c.totals.released++
}

// vanished tells whoever took the lock that it is gone.
func (c *core) vanished(e *entry, rev int64, now reading) {
	c.gone = append(c.gone, Gone{Name: e.Name, Token: e.Token, Revision: rev, At: now.wall.Time()})
	e.marks &^= out
	c.setPhase(e, waiting)
}

// touch is called before a lock changes. It takes the lock out of the indexes
// whose keys the change may move: a heap bears only one misplaced key at a time.
func (c *core) touch(e *entry) {
	if e.touched {
		return
	}
	e.touched = true
	c.touched = append(c.touched, touched{e, basisOf(e)})
	c.overdue.remove(e)
	if e.phase == ready {
		c.setPhase(e, waiting)
	}
}

// settle brings the indexes in line with the locks that were touched, by events
// or by a listing.
func (c *core) settle(now reading, listed bool) {
	for _, t := range c.touched {
		e := t.entry
		e.touched = false
		e.attempts = 0
		if e.Keys <= 0 {
			c.drop(e, e.Revision, now)
			continue
		}
		// For an orphan every change counts.
		if e.Token == 0 || basisOf(e) != t.was {
			c.forgetDue(e)
			if a := e.AutoUnlockAt(); listed && a != 0 && a <= now.wall {
				e.marks |= late
			}
		}
		if e.phase == parked {
			c.setPhase(e, waiting) // the deadline, and what is known of it, may still stand
		}
		c.schedule(e, now)
	}
	clear(c.touched)
	c.touched = c.touched[:0]
}

// drop forgets a lock of which no key is left, since revision rev or, rev being
// 0, since nobody knows when.
func (c *core) drop(e *entry, rev int64, now reading) {
	if e.marks&out != 0 {
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
	if since := e.OverdueSince(); since != 0 && since <= now.wall {
		c.overdue.set(e)
	} else {
		c.overdue.remove(e)
	}
	if !e.Removable() {
		// Mended, it is due when it would have been: due stays as it was.
		c.setPhase(e, waiting)
		c.pend(e, c.nextWake(e, never, now))
		return
	}
	e.due = max(e.due, c.dueAt(e, now))
	if e.due <= now.mono {
		switch {
		case e.phase == handed: // still with whoever took it
			return
		case e.phase == parked: // answered for, but time goes on
			c.pend(e, c.nextWake(e, never, now))
			return
		case e.phase == retrying && e.wake > now.mono:
			return
		}
	}
	c.wait(e, now)
}

// dueAt returns when a lock is to be handed out, as far as its deadline says.
func (c *core) dueAt(e *entry, now reading) instant {
	switch {
	case e.Token != 0:
		return now.mono + instant(c.options.Due(&e.Lock, c.sight(e, now), now.wall)-c.options.Lead)
	case e.due != unset:
		return e.due
	}
	return now.mono + instant(c.options.OrphanGrace)
}

// nextWake returns the next instant at which something about the lock changes
// by itself, due being one.
func (c *core) nextWake(e *entry, due instant, now reading) instant {
	wake := due
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
	if e.due > now.mono {
		if e.phase != parked {
			c.setPhase(e, waiting)
		}
		c.pend(e, c.nextWake(e, e.due, now))
		return
	}
	if e.Token != 0 && e.marks&(late|counted) == 0 {
		e.marks |= counted
		c.cameDue.add(now.mono)
	}
	c.setPhase(e, ready)
	c.ready.set(e)
}

func (c *core) pend(e *entry, wake instant) {
	if e.wake = wake; wake == never {
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
	if step, stepped := c.clock.stepped(now); stepped {
		c.hosts.shift(-step)
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
