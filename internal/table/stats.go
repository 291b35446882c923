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
	// NearMisses are the locks that were renewed late within the last hour: the worst first, up to
	// MaxNearMisses.
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
	s.Overdue = make([]View, 0, min(overdue, s.OverdueTotal))
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

// medianOf is the minimum number of hosts for their median to be evidence about the daemon's
// own clock.
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
