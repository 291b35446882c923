package table

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// observed records what the arrival of a lock's events shows, after they were applied: when the holder last wrote, and
// how far its clock is off. A stamp in whole seconds is the low end of a second, which makes the holder's clock look
// slower than it is: that only delays. The arrival of events that are not live says nothing about a clock.
func (c *core) observed(t change, live bool, now reading) {
	e := t.entry
	acquired, written, alive := e.has(acquiredSeen), e.has(writtenSeen), e.has(aliveSeen)
	e.mark(acquiredSeen|writtenSeen|aliveSeen, false)
	if e.LockedAt() != t.lockedAt {
		e.mark(acquiredLive, false)
	}
	if !written && e.Token != 0 {
		return // any other field alone is not a sign of the holder
	}
	e.learned = now.mono
	stamp := protocol.Timestamp(0)
	if acquired {
		stamp = e.LockedAt()
		e.mark(acquiredLive, live && stamp != 0)
	}
	if at := e.AliveAt(); alive && at != 0 {
		stamp = at
	}
	// Where the last write had no stamp, only the observation of the acquisition counts: locked_at tells how old it is.
	e.mark(late, !live || stamp == 0 && e.has(measured) && !e.has(acquiredLive))
	if !live || stamp == 0 {
		return
	}
	e.mark(measured, true)
	e.ahead = time.Duration(stamp) - now.steady()
	c.hosts.measured(e.Hostname(), time.Duration(stamp-now.wall), now.mono)
}

// ahead returns by how much the holder's clock is ahead of our wall clock.
func (c *core) ahead(e *entry, now reading) time.Duration {
	if !e.has(measured) {
		return 0
	}
	return verdict.Observation{Measured: true, Offset: e.offset(now)}.Ahead(c.options.Rules.ClockTolerance)
}

// holderTime returns the time according to the clock of a lock's holder.
func (c *core) holderTime(e *entry, now reading) protocol.Timestamp {
	return now.wall + protocol.Timestamp(c.ahead(e, now))
}

// offset is the holder's clock minus ours, if measured.
func (e *entry) offset(now reading) time.Duration {
	return e.ahead - (time.Duration(now.wall) - now.steady())
}

func (c *core) observation(e *entry, now reading) verdict.Observation {
	o := verdict.Observation{
		Measured: e.has(measured),
		Late:     e.has(late),
		Age:      time.Duration(now.mono - e.learned),
	}
	if o.Measured {
		o.Offset = e.offset(now)
	}
	if e.notBefore != 0 {
		o.NotBefore = cmp.Or(time.Duration(e.notBefore-now.mono), -1)
	}
	if e.has(stormDelayed) {
		o.StormDelay = c.options.Rules.Storm.Delay
	}
	return o
}

// View is a lock as the table knew it at an instant.
type View struct {
	protocol.Lock
	State protocol.State
	// Observation is the clock observation at the time At, which has a monotonic clock reading. Wall is what our
	// wall clock showed then.
	Observation verdict.Observation
	At, Wall    time.Time
	// OrphanIn is how long after At an orphan is due.
	OrphanIn time.Duration
	// Margin is the least share of its patience that the holder had left at a renewal; nil where none was observed.
	Margin *float64
	// Rhythm is how the holder renews, nil where that is not known.
	Rhythm *api.Rhythm
	// Position is the place in the order that a Query asked for.
	Position Position
	// Ahead is in Stats only: by how much its holder's clock is ahead of the median of the hosts,
	// which a wrong clock of the daemon does not move, or of the daemon's while fewer than three
	// hosts are known. It is 0 where that was not measured, or is within the tolerance.
	Ahead time.Duration
	// Attempts and Slow are of the caller of Take: Postpone keeps Attempts until the lock is
	// modified, and Slow until it has another deadline.
	Attempts int
	Slow     bool
}

func (c *core) view(e *entry, now reading) View {
	v := View{
		Lock: e.Lock, State: e.State(c.holderTime(e, now)), Margin: e.margin.share(),
		Observation: c.observation(e, now), At: c.clock.at(now.mono), Wall: now.wall.Time(),
		Attempts: int(e.attempts), Slow: e.has(slowRead), Rhythm: c.alive(e, now),
	}
	if e.Token == 0 {
		v.OrphanIn = time.Duration(c.dueAt(e, now) - now.mono)
	}
	return v
}

// instant is monotonic time in nanoseconds since the table was made.
type instant int64

const never instant = math.MaxInt64

type clock struct {
	base time.Time
	wall func() time.Time
	// tolerance is how far wall and monotonic time may diverge before that counts as a step of the wall clock.
	tolerance time.Duration
	// last has wall minus monotonic time at the last step.
	last reading
	// raw is a monotonic clock that nothing slews. slewed is by how much the monotonic clock has run
	// faster in all, as of checked, when it was ahead by apart.
	raw           func() time.Duration
	slewed, apart time.Duration
	checked       instant
}

type reading struct {
	mono   instant
	wall   protocol.Timestamp
	slewed time.Duration
}

// steady is a clock that runs as fast as the slower one of the monotonic clock and the raw one: what has
// passed on it has passed on both.
func (r reading) steady() time.Duration { return time.Duration(r.mono) - r.slewed }

// slewCheck is how long what NTP does to the monotonic clock may stay unnoticed: half a millisecond in each
// second. The clocks are not read more often, since the time between two reads adds up.
const slewCheck = 10 * time.Second

// at converts to a time with a monotonic reading.
func (c *clock) at(i instant) time.Time { return c.base.Add(time.Duration(i)) }

func (c *clock) read() reading {
	mono := instant(time.Since(c.base))
	if mono-c.checked >= instant(slewCheck) {
		apart := time.Duration(mono) - c.raw()
		c.slewed += max(0, apart-c.apart)
		c.apart, c.checked = apart, mono
	}
	return reading{mono, protocol.TimestampOf(c.wall()), c.slewed}
}

// stepped reports whether the wall clock stepped since the last reported step, and by how
// much. Slow drift adds up to a step as well.
func (c *clock) stepped(now reading) (step time.Duration, stepped bool) {
	apart := time.Duration(now.wall) - time.Duration(now.mono)
	step = apart - time.Duration(c.last.wall)
	if step.Abs() <= c.tolerance {
		return 0, false
	}
	c.last = reading{wall: protocol.Timestamp(apart), slewed: now.slewed}
	return step, true
}

// now reads the clocks. Where the wall clock stepped it computes the due of every lock again.
func (c *core) now() reading {
	now := c.clock.read()
	if step, stepped := c.clock.stepped(now); stepped {
		c.hosts.shift(-step)
		c.overdue.clear() // the keys change
		before := reading{now.mono, now.wall - protocol.Timestamp(step), now.slewed}
		for _, e := range c.locks {
			c.keepAfterStep(e, before)
			c.schedule(e, now)
		}
	}
	return now
}

// keepAfterStep bounds how much earlier a lock may come due by a step of our wall
// clock, before being the clocks without it.
func (c *core) keepAfterStep(e *entry, before reading) {
	if e.AutoUnlockAt() != 0 {
		e.notBefore = cmp.Or(before.mono+instant(c.inputs(e, before).AfterStep()), -1) // 0 is none
	}
}

func (r reading) time(i instant) time.Time {
	return r.wall.Time().Add(time.Duration(i - r.mono))
}

// Totals are counters since the start. Released does not include locks that Gone reports.
type Totals struct{ Acquired, Renewed, Released, Drift uint64 }

// Stats are the aggregates of the table.
type Stats struct {
	// Locks is the number of locks in each state, indexed by protocol.State.
	Locks [protocol.NumStates]int
	// Backlog counts the locks that are due, may be removed (no policy, pause or brake keeps them), and are still
	// there, those that a storm delays not included. Braked counts those that are due and that a brake keeps.
	Backlog, Braked int
	// Storm is nil without one.
	Storm *api.Storm
	// Overdue are the locks past their alert time, longest first, up to the limit
	// asked for; OverdueTotal counts all of them.
	Overdue      []View
	OverdueTotal int
	Totals
	Clocks api.Clock
	// NearMisses are the locks that were renewed late within the last hour: the worst first, up to MaxNearMisses.
	NearMisses []api.NearMiss
}

func (c *core) stats(overdue int) Stats {
	c.advance()
	now := c.clock.read()
	s := Stats{
		Locks:        c.counts,
		Backlog:      c.backlog,
		Braked:       c.phases[braked],
		Storm:        c.storm.status(now),
		OverdueTotal: c.overdue.Len(),
		Totals:       c.totals,
		Clocks:       c.hosts.clocks(now.mono, c.options.Rules.ClockTolerance, overdue),
	}
	s.NearMisses = c.misses.worst(now)
	c.overdue.smallest(overdue, func(e *entry) {
		v := c.view(e, now)
		if v.Ahead = c.ahead(e, now); v.Ahead != 0 {
			v.Ahead = verdict.Observation{Measured: true, Offset: v.Ahead + time.Duration(s.Clocks.Offset*float64(time.Second))}.Ahead(c.options.Rules.ClockTolerance)
		}
		s.Overdue = append(s.Overdue, v)
	})
	return s
}

const (
	// maxHosts is the maximum number of hosts whose clocks are kept.
	maxHosts = 10_000
	// hostMemory is how long an observation of a clock is kept.
	hostMemory = time.Hour
)

// hosts are the last observations of the clocks of the holders' hosts.
type hosts map[string]hostClock

type hostClock struct {
	offset time.Duration
	at     instant
}

func (h hosts) measured(host string, offset time.Duration, now instant) {
	if _, known := h[host]; host != "" && (known || len(h) < maxHosts) {
		h[host] = hostClock{offset, now}
	}
}

func (h hosts) shift(d time.Duration) {
	for host, c := range h {
		c.offset += d
		h[host] = c
	}
}

// medianOf is the minimum number of hosts for their median to be evidence about the daemon's own clock.
const medianOf = 3

// clocks also removes observations that are older than hostMemory.
func (h hosts) clocks(now instant, tolerance time.Duration, limit int) api.Clock {
	var all []time.Duration
	skewed := []api.HostClock{}
	for host, c := range h {
		if time.Duration(now-c.at) > hostMemory {
			delete(h, host)
			continue
		}
		all = append(all, c.offset)
		if c.offset.Abs() > tolerance {
			skewed = append(skewed, api.HostClock{Hostname: host, Offset: c.offset.Seconds()})
		}
	}
	slices.Sort(all)
	slices.SortFunc(skewed, func(a, b api.HostClock) int {
		return cmp.Or(cmp.Compare(math.Abs(b.Offset), math.Abs(a.Offset)), cmp.Compare(a.Hostname, b.Hostname))
	})
	c := api.Clock{Hosts: len(all), Skewed: skewed[:min(limit, len(skewed))]}
	if len(all) >= medianOf {
		c.Offset = -all[len(all)/2].Seconds()
	}
	return c
}
