package table

import (
	"math"

	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// margin is a share of patience in steps of 1/250, plus one; 0 is none. It is one byte, since
// another would make every entry 8 bytes larger.
type margin uint8

const marginSteps = 250

// marginOf rounds up: 0 is only a renewal at or past the deadline, and what is at most a tenth stays
// that.
func marginOf(share float64) margin { return 1 + margin(math.Ceil(share*marginSteps)) }

// share returns nil for none.
func (m margin) share() *float64 {
	if m == 0 {
		return nil
	}
	share := float64(m-1) / marginSteps
	return &share
}

// renewal is a lock whose deadline a transaction writes.
type renewal struct {
	*entry
	before protocol.Lock
	// arrived is when the write before arrived, by its holder's clock; 0 where that is not known.
	arrived protocol.Timestamp
}

// renewalOf is called before the lock changes.
func renewalOf(e *entry) renewal {
	r := renewal{entry: e, before: e.Lock}
	if e.has(measured) && !e.has(late|writtenSeen) { // learned is that of an earlier write than one just applied
		r.arrived = e.holderAt(e.learned)
	}
	return r
}

// holderAt returns the time by the clock of a holder that was measured.
func (e *entry) holderAt(i instant) protocol.Timestamp {
	return protocol.Timestamp(i) + protocol.Timestamp(e.ahead)
}

// observeMargins observes the renewals of the transaction that was just applied.
func (c *core) observeMargins(now reading) {
	for _, r := range c.renewals {
		e := r.entry
		if e.Token == 0 || e.Newest(protocol.FieldUUID) {
			continue // released or taken by another holder in the same transaction
		}
		at := e.AliveAt()
		if at.IsZero() && e.has(measured) {
			at = e.holderAt(now.mono)
		}
		share, known := verdict.Margin(&r.before, r.arrived, at)
		if !known {
			continue
		}
		c.options.RenewalMargin.Observe(share)
		m := marginOf(share)
		if e.margin == 0 || m < e.margin {
			e.margin = m
		}
		if share <= nearMiss {
			c.misses.add(e, m, now.mono)
		}
	}
	clear(c.renewals)
	c.renewals = c.renewals[:0]
}
