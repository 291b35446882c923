package table

import (
	"cmp"
	"slices"
	"time"
)

// maxHosts bounds the hosts whose clocks are known, hostMemory for how long.
const (
	maxHosts   = 10_000
	hostMemory = time.Hour
)

// hosts are the clocks of the holders' hosts, as last measured.
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

// Clocks compares the holders' clocks with ours.
type Clocks struct {
	// Hosts counts those measured within the last hour, Median is the median of
	// their offsets: theirs minus ours.
	Hosts  int
	Median time.Duration
	// Skewed are those beyond the tolerance, the worst first, up to the limit
	// asked for.
	Skewed []HostClock
}

// HostClock is the clock of one host compared with ours.
type HostClock struct {
	Hostname string
	Offset   time.Duration
}

// clocks also forgets what is older than hostMemory.
func (h hosts) clocks(now instant, tolerance time.Duration, limit int) Clocks {
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
	c := Clocks{Hosts: len(all), Skewed: skewed[:min(limit, len(skewed))]}
	if len(all) > 0 {
		c.Median = all[len(all)/2]
	}
	return c
}
