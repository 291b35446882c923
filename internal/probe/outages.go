package probe

import (
	"context"
	"slices"
	"sort"
	"time"
)

// outages are the times in which etcd could not accept a renewal, in the order of their ends and revisions.
type outages []outage

type outage struct {
	end time.Time
	// revision is what etcd had reached when it ended: every write that was carried out before is not above it.
	revision int64
	// length is all of it, more the part of it after the end of the one before, and before the sum of these
	// parts of all earlier ones.
	length, more, before time.Duration
}

// maxOutages limits the memory. Beyond it the two oldest are merged, which only delays removals.
const maxOutages = 1_000

// add adds an outage. Its revision is not below that of the one before.
func (o *outages) add(start, end time.Time, revision int64) {
	next := outage{end: end, revision: revision, length: end.Sub(start), more: end.Sub(start)}
	if n := len(*o); n > 0 {
		last := (*o)[n-1]
		next.more = min(next.length, end.Sub(last.end))
		next.before = last.before + last.more
	}
	*o = append(*o, next)
	if len(*o) > maxOutages {
		first, merged := (*o)[0], &(*o)[1]
		merged.length += first.length
		merged.more += first.more
		merged.before = first.before
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

// sum returns the time in all outages. What lies in two of them counts once.
func (o outages) sum() time.Duration {
	if len(o) == 0 {
		return 0
	}
	last := o[len(o)-1]
	return last.before + last.more - o[0].before - o[0].more + o[0].length
}

// of returns the outages that count for a deadline: those with a revision not below that of its write, or that
// ended at a time or later.
func (o outages) of(written int64, since time.Time) outages {
	return o[sort.Search(len(o), func(i int) bool { return o[i].revision >= written || !o[i].end.Before(since) }):]
}

func (o outages) after(seen time.Time) time.Duration {
	o = o[sort.Search(len(o), func(i int) bool { return o[i].end.After(seen) }):]
	if len(o) == 0 {
		return 0
	}
	return o.sum() - max(0, o[0].length-o[0].end.Sub(seen))
}

// answered records a probe's answer. Holders can renew while there is no alarm: at NOSPACE etcd
// refuses puts, at CORRUPT everything. It reports whether an outage has ended.
func (p *Probe) answered(start, end time.Time, alarms []string) (outage bool) {
	alarmed := len(p.status.Alarms) > 0
	p.status.OK, p.status.Err, p.status.Alarms = true, nil, alarms
	if len(alarms) > 0 {
		return false
	}
	if last := p.outages.end(); end.Before(last) {
		end = last // that of another probe, which was recorded first
	}
	// Of several at the same time the one that began last counts.
	if outage = end.Sub(p.since) > p.gap() || alarmed; outage {
		p.outages.add(p.since, end, p.revision)
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
	return time.Since(p.status.Good) > max(p.Patience, p.slow()) // never is longer ago
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

// Allowance returns for how long outages kept the holder of a lock from renewing it. That of the deadline is
// the sum of the outages that ended when etcd had reached the revision of the lock's last write, or after that
// write was learned. For a write without a stamp it also has those that ended up to Timeout earlier: nothing
// shows how long it was on its way. That of the patience is the time in outages after the write was learned.
func (p *Probe) Allowance(written int64, learned time.Time, stamped bool) (deadline, patience time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := learned
	if !stamped {
		since = since.Add(-p.Timeout)
	}
	counted := p.outages.of(written, since)
	deadline, patience = counted.sum(), p.outages.after(learned)
	if now := time.Now(); len(p.status.Alarms) > 0 || !p.since.IsZero() && now.Sub(p.since) > p.gap() {
		deadline += now.Sub(latest(p.since, counted.end())) + unfinished
		patience += now.Sub(latest(p.since, p.outages.end(), learned)) + unfinished
	}
	return deadline, patience
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Forget forgets all outages that are over: they belong to what etcd was before it was restored.
func (p *Probe) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outages, p.revision, p.status.Revision = nil, 0, 0
}

// The lead is how long before a lock is due the probe may begin that its removal needs: long enough for the
// answer to be there when it is due, and too short for a renewal.
const (
	minLead = 10 * time.Millisecond
	maxLead = 100 * time.Millisecond
)

// Lead returns what the last good probe took, within the limits.
func (p *Probe) Lead() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(p.answer, minLead), maxLead)
}

// Good is that of Status.
func (p *Probe) Good() time.Time { return p.Status().Good }

// Begin begins a probe next to those of Run, at most twenty times a second, and whether or not earlier ones
// were answered. Its outcome is recorded like that of any other. Without Run it does nothing.
func (p *Probe) Begin() { p.another() }

// another is Begin. It returns after how long the next probe may begin.
func (p *Probe) another() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, ctx := time.Now(), p.running
	if ctx == nil {
		return minDistance
	}
	if early := minDistance - now.Sub(p.begun); early > 0 {
		return early
	}
	p.begun = now
	p.first(now)
	p.requests.Go(func() { p.record(now, p.askAll(ctx, nil)) })
	return minDistance
}

// Await waits until a good probe is recorded that began at a time or later, and begins probes meanwhile. It
// returns the error of ctx if there is none.
func (p *Probe) Await(ctx context.Context, since time.Time) error {
	for {
		good, news := p.next()
		if !good.Before(since) {
			return nil
		}
		select {
		case <-news:
		case <-time.After(p.another()):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns when the last good probe began, and a channel that is closed with the next answer.
func (p *Probe) next() (good time.Time, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{})
	}
	return p.status.Good, p.news
}
