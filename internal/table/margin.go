package table

import (
	"cmp"
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// margin is a share of patience in steps of 1/250, plus one; 0 is none. It is one byte, since
// another would make every entry 8 bytes larger.
type margin uint8

const marginSteps = 250

// share returns nil for none.
func (m margin) share() *float64 {
	if m == 0 {
		return nil
	}
	return new(float64(m-1) / marginSteps)
}

// renewal is a lock whose deadline a transaction writes.
type renewal struct {
	*entry
	before protocol.Lock
	// arrived is when the write before arrived, by its holder's clock; 0 where that is not known.
	arrived protocol.Timestamp
	// since is when the write before was observed live; 0 where it was not, or was no renewal.
	since instant
}

// renewalOf is called before the lock changes.
func renewalOf(e *entry) renewal {
	r := renewal{entry: e, before: e.Lock}
	if !e.has(late|writtenSeen) && e.Written > e.Token {
		r.since = e.learned
	}
	if e.has(measured) && !e.has(late|writtenSeen) { // learned is that of an earlier write than one just applied
		r.arrived = e.holderAt(e.learned)
	}
	return r
}

// holderAt returns the time according to the clock of a holder that was measured.
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
		c.observeRhythm(e, r.since, now)
		at := e.AliveAt()
		if at.IsZero() && e.has(measured) {
			at = e.holderAt(now.mono)
		}
		share, known := verdict.Margin(&r.before, r.arrived, at)
		if !known {
			continue
		}
		c.options.RenewalMargin.Observe(share)
		// Rounded up: 0 is only a renewal at or past the deadline, and what is at most a tenth stays that.
		m := 1 + margin(math.Ceil(share*marginSteps))
		if e.margin == 0 || m < e.margin {
			e.margin = m
		}
		if share <= nearMiss {
			c.misses.add(e, *m.share(), now.mono)
		}
	}
	clear(c.renewals)
	c.renewals = c.renewals[:0]
}

const (
	// nearMiss is the maximum share of the patience that is left at a late renewal.
	nearMiss = 0.1
	// missMemory is how long a lock that was renewed late is kept.
	missMemory = time.Hour
	// MaxNearMisses is the maximum number of near misses in Stats. Of more the table keeps
	// count, up to maxMisses: after an outage, when all renew late, one that always does must not
	// be lost among them.
	MaxNearMisses = 20
	maxMisses     = 500
	// maxMissName bounds a name, in bytes, since it may outlive its lock.
	maxMissName = 4 << 10
)

// nearMisses are the locks that were renewed late, those of the last late renewals.
type nearMisses struct {
	of map[missKey]*list.Element
	// recent has a *miss for each, the last one first.
	recent *list.List
}

type missKey struct{ name, owner string }

// miss is a near miss, the time of which is at.
type miss struct {
	api.NearMiss
	at instant
}

func (n nearMisses) add(e *entry, share float64, now instant) {
	key := missKey{protocol.Clip([]byte(e.Name), maxMissName), e.Owner()}
	element := n.of[key]
	if element == nil {
		if len(n.of) == maxMisses {
			last := n.recent.Remove(n.recent.Back()).(*miss)
			delete(n.of, missKey{last.Name, last.Owner})
		}
		element = n.recent.PushFront(&miss{NearMiss: api.NearMiss{Name: key.name, Owner: key.owner}})
		n.of[key] = element
	}
	n.recent.MoveToFront(element)
	kept := element.Value.(*miss)
	if kept.Renewals == 0 || kept.old(now) {
		kept.Margin, kept.Renewals = share, 0
	}
	if kept.at = now; share <= kept.Margin {
		kept.Hostname, kept.Margin = e.Hostname(), share
	}
	kept.Renewals++
}

func (m *miss) old(now instant) bool { return time.Duration(now-m.at) > missMemory }

// worst returns those that were late more than once before those that were once, as all are after
// an outage; of both the least margins first.
func (n nearMisses) worst(now reading) []api.NearMiss {
	var all []*miss
	for e := n.recent.Front(); e != nil && !e.Value.(*miss).old(now.mono); e = e.Next() {
		all = append(all, e.Value.(*miss))
	}
	slices.SortFunc(all, func(a, b *miss) int {
		return cmp.Or(cmp.Compare(min(b.Renewals, 2), min(a.Renewals, 2)), cmp.Compare(a.Margin, b.Margin),
			cmp.Compare(b.Renewals, a.Renewals), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Owner, b.Owner))
	})
	worst := make([]api.NearMiss, min(len(all), MaxNearMisses))
	for i := range worst {
		worst[i] = all[i].NearMiss
		worst[i].At = now.time(all[i].at)
	}
	return worst
}

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
