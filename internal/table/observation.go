package table

import (
	"cmp"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// observed records what the arrival of a lock's events shows, after they were
// applied: when the holder last wrote, and how far its clock is off. A stamp in
// whole seconds is the low end of a second, which makes the holder's clock look
// slower than it is: that only delays. The arrival of events that are not live says
// nothing about a clock.
func (c *core) observed(e *entry, live bool, known instant, now reading) {
	acquired, written, alive := e.has(acquiredSeen), e.has(writtenSeen), e.has(aliveSeen)
	e.mark(acquiredSeen|writtenSeen|aliveSeen, false)
	if !written && e.Token != 0 {
		return // any other field alone is not a sign of the holder
	}
	e.learn(now.mono, known)
	e.mark(late, !live)
	stamp := protocol.Timestamp(0)
	if acquired {
		stamp = e.LockedAt()
	}
	if at := e.AliveAt(); alive && at != 0 {
		stamp = at
	}
	if !live || stamp == 0 {
		return
	}
	e.mark(measured, true)
	e.ahead = time.Duration(stamp) - time.Duration(now.mono)
	c.hosts.measured(e.Hostname(), time.Duration(stamp-now.wall), now.mono)
}

// ahead returns by how much the holder's clock is ahead of our wall clock.
func (c *core) ahead(e *entry, now reading) time.Duration {
	if !e.has(measured) {
		return 0
	}
	return verdict.Observation{Measured: true, Offset: e.offset(now)}.Ahead(c.options.Rules.Tolerance)
}

// holderTime returns the time by the clock of a lock's holder.
func (c *core) holderTime(e *entry, now reading) protocol.Timestamp {
	return now.wall + protocol.Timestamp(c.ahead(e, now))
}

// offset is the holder's clock minus ours, if measured.
func (e *entry) offset(now reading) time.Duration {
	return e.ahead - (time.Duration(now.wall) - time.Duration(now.mono))
}

func (c *core) observation(e *entry, now reading) verdict.Observation {
	o := verdict.Observation{
		Measured: e.has(measured),
		Late:     e.has(late),
		Age:      time.Duration(now.mono - e.learned),
		Stale:    time.Duration(now.mono - e.known()),
	}
	if o.Measured {
		o.Offset = e.offset(now)
	}
	if e.notBefore != 0 {
		o.NotBefore = cmp.Or(time.Duration(e.notBefore-now.mono), -1)
	}
	if e.has(stormDelayed) {
		o.StormDelay = c.options.Storm.Delay
	}
	return o
}
