package table

import (
	"math"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// rhythm is the time between two renewals in tenths of a second; 0 is none. It fits into the padding of an entry.
type rhythm uint16

const rhythmUnit = time.Second / 10

// observeRhythm is called for a renewal that is observed live, the one before being observed at since. The first interval
// is the rhythm, and each further one moves it by a quarter of the difference, and counts as twice the rhythm at most:
// one hiccup changes little. What the reaper would allow for outages of etcd is not in it.
func (c *core) observeRhythm(e *entry, since instant, now reading) {
	if since == 0 {
		return
	}
	took := time.Duration(now.mono-since) - c.inputs(e, now).PatienceAllowance
	if old := time.Duration(e.rhythm) * rhythmUnit; old != 0 {
		took = old + (min(took, 2*old)-old)/4
	}
	if e.rhythm = 0; took <= math.MaxUint16*rhythmUnit { // or it is too rare to be kept
		e.rhythm = rhythm(max(1, took.Round(rhythmUnit)/rhythmUnit))
	}
}

// alive returns how a holder renews: a renewal is missed once an eighth of the rhythm has passed beyond its time. The time
// in outages of etcd does not count. Where the last write was not observed live, nothing is known. No verdict depends on it.
func (c *core) alive(e *entry, now reading) *api.Rhythm {
	every := time.Duration(e.rhythm) * rhythmUnit
	if every == 0 || e.Token == 0 || e.has(late) {
		return nil
	}
	over := time.Duration(now.mono-e.learned) - every/8
	if over >= every {
		over -= c.inputs(e, now).PatienceAllowance
	}
	return &api.Rhythm{RenewedAt: now.time(e.learned).UTC(), Interval: every.Seconds(), Missed: max(0, int(over/every))}
}
