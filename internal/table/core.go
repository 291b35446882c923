package table

import (
	"container/list"
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// core is the table without its goroutine. It does not lock or block.
type core struct {
	options Options
	clock   clock

	locks   map[string]*entry
	pending index
	ready   index
	overdue index
	touched []change
	gone    []Gone
	// renewals are those of the transaction being applied.
	renewals []renewal
	misses   nearMisses
	changed  bool // since Run last signalled it

	counts  [protocol.NumStates]int
	backlog int
	phases  [braked + 1]int // how many are in each but waiting
	totals  Totals
	storm   storm

	listing listing
	hosts   hosts
}

func newCore(o Options) *core {
	c := &core{
		options: o, locks: make(map[string]*entry), listing: listing{first: true}, hosts: make(hosts),
		storm:  storm{rules: o.Rules, logger: o.Logger, came: window{width: instant(o.Rules.Storm.Window)}, gone: window{width: instant(o.Rules.Storm.Window)}},
		misses: nearMisses{make(map[missKey]*list.Element), list.New()},
	}
	c.clock = clock{base: time.Now(), wall: o.Now, raw: o.Raw, tolerance: o.Rules.ClockTolerance}
	c.clock.apart = -c.clock.raw()
	now := c.clock.read()
	c.clock.last = reading{wall: now.wall - protocol.Timestamp(now.mono)}
	pos, wake := func(e *entry) *int32 { return &e.pos }, func(e *entry) int64 { return int64(e.wake) }
	c.pending = index{key: wake, pos: pos}
	c.ready = index{key: wake, pos: pos}
	c.overdue = index{
		key: func(e *entry) int64 {
			// By the clocks as of the last step, so that no key changes until the next.
			return int64(e.OverdueSince()) - int64(c.ahead(e, c.clock.last))
		},
		pos: func(e *entry) *int32 { return &e.overduePos },
	}
	return c
}

// change is a lock that is being changed, with its basis and locked_at before the change.
type change struct {
	*entry
	was      basis
	lockedAt protocol.Timestamp
}

// basis is what the due of a lock depends on.
type basis struct {
	token    int64
	deadline protocol.Timestamp
}

func basisOf(e *entry) basis { return basis{e.Token, e.AutoUnlockAt()} }

func (c *core) add(name string) *entry {
	e := &entry{Lock: protocol.Lock{Name: name}, state: none}
	c.locks[name] = e
	return e
}

// newDeadline forgets what belongs to the deadline before.
func (c *core) newDeadline(e *entry) {
	c.storm.forget(e)
	e.notBefore = 0
	e.mark(slowRead, false)
	if e.phase != taken {
		c.setPhase(e, waiting)
	}
}

// released counts the end of a lock, whole or not, at revision rev, or 0 if only a listing showed it.
func (c *core) released(e *entry, rev int64, whole bool, now reading) {
	if at := e.LockedAt(); !at.IsZero() {
		c.options.HoldDuration.Observe(max(0, time.Duration(c.holderTime(e, now)-at)).Seconds())
	}
	past := e.State(c.holderTime(e, now)) == protocol.Expired
	if !past && c.options.Released != nil {
		c.options.Released(e.Name, e.Token)
	}
	if past || e.has(unanswered) {
		c.reportGone(e, rev, now, past)
		c.gone[len(c.gone)-1].Whole = whole
		return
	}
	c.totals.Released++
}

// reportGone reports that the lock was deleted, past its deadline or while Take had returned it.
func (c *core) reportGone(e *entry, rev int64, now reading, past bool) {
	g := Gone{Name: e.Name, Token: e.Token, Revision: rev, At: now.wall.Time()}
	if past {
		l := e.Lock
		g.Past = &l
	}
	c.gone = append(c.gone, g)
	e.mark(unanswered, false)
	c.setPhase(e, waiting)
}

// touch is called before a lock changes. It removes the lock from the index whose
// key the change may move: a heap tolerates one misplaced key at a time.
func (c *core) touch(e *entry) {
	if e.has(touched) {
		return
	}
	e.mark(touched, true)
	c.touched = append(c.touched, change{e, basisOf(e), e.LockedAt()})
	c.overdue.remove(e)
}

// reschedule updates the indexes for the locks that were touched, by events or by a listing.
func (c *core) reschedule(now reading) {
	for _, t := range c.touched {
		e := t.entry
		e.mark(touched, false)
		e.attempts = 0
		if e.Keys <= 0 {
			c.drop(e, e.Revision, now)
			continue
		}
		if basisOf(e) != t.was {
			c.newDeadline(e)
		}
		if e.phase == suspended {
			c.setPhase(e, waiting) // the lock was modified, even if its deadline was not
		}
		c.schedule(e, now)
	}
	clear(c.touched)
	c.touched = c.touched[:0]
}

// drop removes a lock without keys, deleted at revision rev, or 0 if that is not known.
func (c *core) drop(e *entry, rev int64, now reading) {
	c.changed = true
	if e.has(unanswered) {
		c.reportGone(e, rev, now, false)
	}
	c.storm.dropped(e, now.mono)
	c.setState(e, none)
	c.setPhase(e, waiting)
	c.pending.remove(e)
	c.overdue.remove(e)
	delete(c.locks, e.Name)
	if c.listing.deleted != nil && e.has(deletedLast) { // or the listing shows what the watch has lost
		c.listing.deleted[e.Name] = struct{}{}
	}
}

// schedule computes a lock's state and its next transition.
func (c *core) schedule(e *entry, now reading) {
	c.changed = true
	holders := c.holderTime(e, now)
	c.setState(e, e.State(holders))
	if since := e.OverdueSince(); since != 0 && since <= holders {
		c.overdue.set(e)
	} else {
		c.overdue.remove(e)
	}
	if !e.Removable() {
		c.storm.over(e)
		c.setPhase(e, waiting)
		c.pend(e, nextWake(e, never, now, holders))
		return
	}
	due := c.dueAt(e, now)
	if due <= now.mono && e.Token != 0 {
		c.storm.cameDue(e, now.mono, c.counts[protocol.Held]+c.counts[protocol.Overdue]+c.counts[protocol.Expired])
		due = c.dueAt(e, now)
	}
	if e.has(stormWaiting) {
		c.storm.until = max(c.storm.until, due)
	}
	if due <= now.mono {
		c.storm.over(e)
		switch {
		case e.phase == taken: // the caller of Take has not answered yet
			return
		case e.has(unanswered): // nor here, and the answer will be about what was before
			c.setPhase(e, changed)
			c.pending.remove(e)
			return
		case e.phase == suspended, e.phase.kept(): // its state still changes with time
			c.pend(e, nextWake(e, never, now, holders))
			return
		case e.phase == retrying && e.wake > now.mono:
			return
		}
	}
	c.wait(e, due, now, holders)
}

// dueAt returns when Take may return a lock.
func (c *core) dueAt(e *entry, now reading) instant {
	if e.Token == 0 {
		return e.learned + instant(c.options.Rules.OrphanGrace)
	}
	dueIn := instant(c.inputs(e, now).DueIn() - c.options.Lead())
	return now.mono + min(dueIn, never-now.mono)
}

// inputs are what the verdict on a lock with a uuid depends on.
func (c *core) inputs(e *entry, now reading) verdict.Inputs {
	in := c.options.Rules.Inputs(&e.Lock, c.observation(e, now), now.wall.Time())
	in.Allow(c.options.Allowance, e.Written, c.clock.at(now.mono))
	return in
}

// nextWake returns the next instant at which the state of the lock changes, or due if that
// is earlier. holders is the time by its holder's clock.
func nextWake(e *entry, due instant, now reading, holders protocol.Timestamp) instant {
	wake := due
	for _, t := range [...]protocol.Timestamp{e.AlertAt(), e.AutoUnlockAt()} {
		if t > holders {
			wake = min(wake, now.mono+instant(t-holders))
		}
	}
	return wake
}

// wait puts e into the pending index until its next transition or, where it is
// due, into the ready index for the next call of Take.
func (c *core) wait(e *entry, due instant, now reading, holders protocol.Timestamp) {
	if due > now.mono {
		if e.phase != suspended {
			c.setPhase(e, waiting)
		}
		c.pend(e, nextWake(e, due, now, holders))
		return
	}
	c.setPhase(e, ready)
	e.wake = due
	c.ready.set(e)
}

func (c *core) pend(e *entry, wake instant) {
	if e.wake = wake; wake == never {
		c.pending.remove(e)
	} else {
		c.pending.set(e)
	}
}

// setPhase removes e from the index of its old phase, and updates the backlog.
func (c *core) setPhase(e *entry, p phase) {
	if (e.phase == ready) != (p == ready) {
		if e.phase == ready {
			c.ready.remove(e)
		} else {
			c.pending.remove(e)
		}
	}
	if change := inBacklog(p) - inBacklog(e.phase); change != 0 && c.mayRemove(e) {
		c.backlog += change
	}
	c.phases[e.phase]--
	c.phases[p]++
	e.phase = p
}

func inBacklog(p phase) int {
	if p == waiting || p.kept() {
		return 0
	}
	return 1
}

// mayRemove reports whether neither reaper.mode nor a policy keeps the lock.
func (c *core) mayRemove(e *entry) bool {
	p, _ := c.options.Rules.Policy(e.Name)
	return p.Mode == verdict.Enforce
}

// none is the state of an entry that is not counted.
const none = protocol.NumStates

func (c *core) setState(e *entry, s protocol.State) {
	if e.state != none {
		c.counts[e.state]--
	}
	if s != none {
		c.counts[s]++
	}
	e.state = s
}

// scheduleAll is for outages of which more is known. A lock that was put back during one waits by what was assumed.
func (c *core) scheduleAll() {
	now := c.now()
	for _, e := range c.locks {
		if e.phase == retrying {
			c.setPhase(e, waiting)
		}
		c.schedule(e, now)
	}
}

func (c *core) advance() {
	now := c.now()
	for e := c.pending.top(); e != nil && e.wake <= now.mono; e = c.pending.top() {
		c.schedule(e, now)
	}
}

func (c *core) sleep() time.Duration {
	e := c.pending.top()
	if e == nil {
		return math.MaxInt64
	}
	return max(0, time.Duration(e.wake)-time.Since(c.clock.base))
}
