package table

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Stats are the aggregates of the table.
type Stats struct {
	// Locks is the number of locks in each state, indexed by protocol.State.
	Locks [protocol.NumStates]int
	// Backlog counts the locks that are due, may be removed (neither a policy nor a pause keeps
	// them), and are still there, StormDelayed those that would be due but for a storm.
	Backlog, StormDelayed int
	// Overdue are the locks past their alert time, longest first, up to the limit
	// asked for; OverdueTotal counts all of them.
	Overdue      []Overdue
	OverdueTotal int
	// Acquired, Renewed, Released and Drift are counters since the start. Released does not
	// include locks that Gone reports.
	Acquired, Renewed, Released, Drift uint64
	// Clocks are the clocks of the holders' hosts.
	Clocks Clocks
	// NearMisses are the locks that were renewed late within the last hour: the worst first, up to
	// MaxNearMisses.
	NearMisses []NearMiss
}

// Overdue is a lock past its alert time.
type Overdue struct {
	protocol.Lock
	// Ahead is by how much its holder's clock is ahead of the median of the hosts, which a
	// wrong clock of the daemon does not move, or of the daemon's while fewer than three hosts
	// are known. It is 0 where that was not measured, or is within the tolerance.
	Ahead time.Duration
}

func (c *core) overdueLock(e *entry, own time.Duration, now reading) Overdue {
	ahead := c.ahead(e, now)
	if ahead != 0 {
		ahead = verdict.Observation{Measured: true, Offset: ahead + own}.Ahead(c.options.Rules.Tolerance)
	}
	return Overdue{e.Lock, ahead}
}

func (c *core) stats(overdue int) Stats {
	c.advance()
	now := c.clock.read()
	s := Stats{
		Locks:        c.counts,
		Backlog:      c.backlog,
		StormDelayed: c.storm.waiting,
		OverdueTotal: c.overdue.Len(),
		Acquired:     c.totals.acquired,
		Renewed:      c.totals.renewed,
		Released:     c.totals.released,
		Drift:        c.totals.drift,
		Clocks:       c.hosts.clocks(now.mono, c.options.Rules.Tolerance, overdue),
	}
	s.NearMisses = c.misses.worst(now)
	s.Overdue = make([]Overdue, 0, min(overdue, s.OverdueTotal))
	c.overdue.smallest(overdue, func(e *entry) { s.Overdue = append(s.Overdue, c.overdueLock(e, s.Clocks.Offset(), now)) })
	return s
}
