package table

import (
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// observed is called after events of a lock were applied. It records when the lock was last
// written and, if the events were live, the offset of the holder's clock: its timestamp minus
// the time of the arrival. A timestamp in whole seconds makes the clock look slower than it
// is, which only delays a removal.
func (c *core) observed(e *entry, live bool, now reading) {
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

func (c *core) observation(e *entry, now reading) verdict.Observation {
	o := verdict.Observation{Measured: e.marks&measured != 0, Age: time.Duration(now.mono - e.seen)}
	if o.Measured {
		o.Offset = e.ahead - (time.Duration(now.wall) - time.Duration(now.mono))
	}
	if e.due != unset {
		o.Earliest = time.Duration(e.due-now.mono) + c.options.Lead
	}
	return o
}

// window counts events in a sliding window, with a resolution of 1/64 of its width.
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
