package probe

import (
	"slices"
	"sort"
	"time"
)

// outages are the times in which etcd could not accept a renewal, in their order.
type outages []outage

type outage struct {
	end    time.Time
	length time.Duration
	// before is the sum of the lengths of all earlier outages.
	before time.Duration
}

// maxOutages limits the memory. Beyond it the two oldest are merged, which only delays
// removals.
const maxOutages = 1_000

func (o *outages) add(end time.Time, length time.Duration) {
	next := outage{end: end, length: length}
	if n := len(*o); n > 0 {
		next.before = (*o)[n-1].before + (*o)[n-1].length
	}
	*o = append(*o, next)
	if len(*o) > maxOutages {
		(*o)[1].length += (*o)[0].length
		(*o)[1].before = (*o)[0].before
		*o = (*o)[1:]
	}
}

// end returns when the newest outage ended, or the zero time if there was none.
func (o outages) end() time.Time {
	if len(o) == 0 {
		return time.Time{}
	}
	return o[len(o)-1].end
}

// since returns the sum of the outages after a time. If the time is within an outage, only the
// rest of that outage counts.
func (o outages) since(seen time.Time) time.Duration {
	n := len(o)
	if n == 0 || !o[n-1].end.After(seen) {
		return 0
	}
	first := sort.Search(n, func(i int) bool { return o[i].end.After(seen) })
	all := o[n-1].before + o[n-1].length
	return min(o[first].length, o[first].end.Sub(seen)) + all - o[first].before - o[first].length
}

// answered records a probe's answer. Holders can renew while there is no alarm:
// at NOSPACE etcd refuses puts, at CORRUPT everything. It reports whether an outage has
// ended.
func (p *Probe) answered(start, end time.Time, alarms []string) (outage bool) {
	alarmed := len(p.status.Alarms) > 0
	p.status.OK, p.status.Err, p.status.Alarms = true, nil, alarms
	if len(alarms) > 0 {
		return false
	}
	if last := p.outages.end(); end.Before(last) {
		end = last // that of another probe, which was recorded first
	}
	gap := end.Sub(p.since) // of several at the same time the one that began last counts
	if outage = gap > p.gap() || alarmed; outage {
		// The probe that ended the last outage lies in both gaps where its answer
		// was slow: that time counts once.
		p.outages.add(end, min(gap, end.Sub(p.outages.end())))
	}
	p.answer = end.Sub(start)
	if start.After(p.status.Good) {
		p.since, p.status.Good = start, start
	}
	if p.news != nil {
		close(p.news)
		p.news = nil
	}
	return outage
}

// Overdue reports whether holders may be unable to renew at present: no probe that began within
// the last Patience, or three times what they took lately, has shown that they can.
func (p *Probe) Overdue() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Good.IsZero() || time.Since(p.status.Good) > max(p.Patience, p.slow())
}

// slow is three times what probes took lately: where etcd is steadily slow, that is neither an outage without end nor
// a hold. One slow answer is an outage, after which the next counts in full. The caller holds the mutex.
func (p *Probe) slow() time.Duration { return 3 * slices.Min(p.lately[:]) }

// gap is the maximum time from good to good that is not an outage. The caller holds the mutex.
func (p *Probe) gap() time.Duration { return max(p.Interval*3/2, p.slow()) }

// unfinished is how long an outage in progress is assumed to last yet, so that what it
// delays is not computed again and again. No lock is removed during an outage, and all is
// computed again when it ends.
const unfinished = time.Minute

// Allowance returns for how long outages kept a holder from renewing a lock that was
// last known to be current at the time given.
func (p *Probe) Allowance(known time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.outages.since(known)
	if now := time.Now(); len(p.status.Alarms) > 0 || !p.since.IsZero() && now.Sub(p.since) > p.gap() {
		from := p.since
		for _, t := range []time.Time{known, p.outages.end()} {
			if t.After(from) {
				from = t
			}
		}
		all += now.Sub(from) + unfinished
	}
	return all
}
