package table

import (
	"cmp"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// sighted notes what the arrival of a lock's events tells, after they were
// applied: when it was written last, and how far its owner's clock is off. A
// stamp in whole seconds is the low end of a second, which makes the owner look
// slower than it is: that only delays. Events that were waiting for us (live is
// false) tell nothing about the clock.
func (c *core) sighted(e *entry, live bool, now reading) {
	marks := e.marks
	e.marks &^= acquiredSeen | aliveSeen
	e.seen = now.mono
	stamp := lock.Timestamp(0)
	if marks&acquiredSeen != 0 {
		stamp = e.LockedAt()
	}
	if alive := e.AliveAt(); marks&aliveSeen != 0 && alive != 0 {
		stamp = alive
	}
	if !live || stamp == 0 {
		return
	}
	e.marks |= measured
	e.ahead = time.Duration(stamp) - time.Duration(now.mono)
	c.hosts.measured(e.Hostname(), time.Duration(stamp-now.wall), now.mono)
}

func (c *core) sight(e *entry, now reading) lock.Sight {
	s := lock.Sight{Measured: e.marks&measured != 0, Age: time.Duration(now.mono - e.seen)}
	if s.Measured {
		s.Offset = e.ahead - (time.Duration(now.wall) - time.Duration(now.mono))
	}
	if e.due != unset {
		s.Anchor = time.Duration(e.due-now.mono) + c.options.Lead
	}
	return s
}

// window counts events of the last while, to a 64th of it.
type window struct {
	width instant
	slots [64]struct {
		at instant
		n  int
	}
}

func (w *window) slot(now instant) (i int, start instant) {
	step := max(1, w.width/instant(len(w.slots)-1))
	return int(now / step % instant(len(w.slots))), now - now%step
}

func (w *window) add(now instant) {
	i, start := w.slot(now)
	if w.slots[i].at != start {
		w.slots[i].at, w.slots[i].n = start, 0
	}
	w.slots[i].n++
}

func (w *window) count(now instant) int {
	n := 0
	for i := range w.slots {
		if w.slots[i].at > now-w.width {
			n += w.slots[i].n
		}
	}
	return n
}

// maxHosts bounds the hosts whose clocks are known, hostMemory for how long.
const (
	maxHosts   = 10_000
	hostMemory = time.Hour
)

// hosts are the clocks of the owners' hosts, as last measured.
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

// Clocks tell how the owners' clocks compare with ours.
type Clocks struct {
	// Hosts counts those measured within the last hour, Median is the median of
	// their offsets: theirs minus ours.
	Hosts  int
	Median time.Duration
	// Skewed are those beyond the tolerance, the worst first, at most as many
	// as were asked for.
	Skewed []HostClock
}

// HostClock is the clock of one host compared with ours.
type HostClock struct {
	Hostname string
	Offset   time.Duration
}

// clocks forgets what is old on the way.
func (h hosts) clocks(now instant, tolerance time.Duration, most int) Clocks {
	var all []time.Duration
	var skewed []HostClock
	for host, c := range h {
		if time.Duration(now-c.at) > hostMemory {
			delete(h, host)
			continue
		}
		all = append(all, c.offset)
		if c.offset.Abs() > tolerance {
			skewed = append(skewed, HostClock{host, c.offset})
		}
	}
	slices.Sort(all)
	slices.SortFunc(skewed, func(a, b HostClock) int {
		return cmp.Or(cmp.Compare(b.Offset.Abs(), a.Offset.Abs()), cmp.Compare(a.Hostname, b.Hostname))
	})
	c := Clocks{Hosts: len(all), Skewed: skewed[:min(most, len(skewed))]}
	if len(all) > 0 {
		c.Median = all[len(all)/2]
	}
	return c
}
