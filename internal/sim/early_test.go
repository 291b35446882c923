package sim

import (
	"math"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// bound is when a lock may be removed at the earliest, outages aside, and since when these count.
type bound struct{ at, since time.Duration }

// early adds what is known of when a lock may be removed, and returns its bounds.
func (j *judge) early(d *daemon, s *state, now time.Duration, sent *judges.Sending) (bounds []bound) {
	r := j.w.config.Reaper
	if !s.Held() {
		const reads = 2 * time.Second // before the verdict
		if a := j.of[d].log.Last(s.Name); a != nil && a.Matches(s.Lock) {
			if made := a.At.From.Sub(j.w.began); s.touched >= made || s.taken.at >= made-reads {
				return nil // meanwhile it was taken and released, which no key that is left shows
			}
		}
		touched := s.touched
		if !j.saw(d, now, touched) { // and no listing shows that it was taken and released without these keys
			touched = j.at[s.Newest()]
		}
		at := max(touched, j.changed(d, s)) + r.OrphanGrace
		sent.Passes, sent.Why = j.w.at(at), "an orphan"
		return []bound{{at, math.MaxInt64}}
	}
	auto, dated := s.Deadline()
	if !dated {
		return nil // S8 judges it
	}
	earliest, since, why := j.due(d, s)
	sent.Passes, sent.Why = j.w.at(earliest), why
	written := max(s.write.at, s.restored, d.started)
	if late, _ := j.heard(d, s); !s.write.stamped && !late { // nothing shows how long it was on its way
		written = max(s.write.at+j.shownLate(d, s.write.at)-j.w.config.Etcd.RequestTimeout, s.write.made, s.restored, d.started)
	}
	if forgot := j.of[d].forgot; forgot > s.write.at { // earlier outages do not count
		since, written = forgot, forgot
	}
	bounds = append(bounds, bound{earliest, since})
	if len(d.clock.Steps) == 0 { // whenever it was learned
		bounds = append(bounds, bound{auto.Sub(j.w.epoch) - d.clock.apart(now) + r.Grace, written})
	}
	if at := j.stepped(d, s, auto, now); at > 0 {
		bounds = append(bounds, bound{at, math.MaxInt64})
	}
	sent.Outages, sent.Renewable = j.outage(d, written), j.w.at(latestOf(bounds, func(b bound) time.Duration { return j.outage(d, b.since) }))
	sent.Deadline, sent.Clock = auto, j.w.epoch.Add(now+d.clock.apart(now))
	sent.Leads = j.leads(d, now)
	return bounds
}

// showed returns what the clock of a daemon showed at the latest, by which it sends a removal. A step back counts neither
// after the verdict nor, within the tolerance, after the lock was due and taken by a worker.
func (j *judge) showed(d *daemon, sent judges.Sending, now, verdict time.Duration) time.Time {
	r, clock := j.w.config.Reaper, sent.Clock
	for _, step := range d.clock.Steps {
		taken := !j.w.epoch.Add(step.At + d.clock.apart(step.At) - step.By + lead).Before(sent.Deadline.Add(r.Grace))
		if step.By < 0 && step.At <= now && (step.At > verdict || taken && -step.By <= r.ClockTolerance) {
			clock = clock.Add(-step.By)
		}
	}
	return clock
}

// leads reports whether a daemon may lead, or may not have noticed yet that it does not.
func (j *judge) leads(d *daemon, now time.Duration) bool {
	stale := j.w.at(now - j.w.config.Election.TTL - 2*j.w.config.Etcd.RequestTimeout)
	return j.election.Leader() == "" || j.election.Led(func(identity string) bool { return identity == d.identity() }, math.MaxInt64, stale)
}

// stepped returns until when rule 7 keeps a lock that a daemon knew before its clock was set forward, 0 if it was not, or
// more than once.
func (j *judge) stepped(d *daemon, s *state, auto time.Time, now time.Duration) time.Duration {
	r, before := j.w.config.Reaper, d.clock.Offset+now*time.Duration(d.clock.Drift)/1_000_000
	if len(d.clock.Steps) == 0 || len(d.clock.Steps) > 1 && d.clock.Steps[1].At <= now {
		return 0
	}
	step := d.clock.Steps[0]
	if step.At > now || step.At < max(s.write.at, d.started)+2*time.Second || step.By <= r.ClockTolerance+precise ||
		j.changed(d, s) > 0 || j.of[d].forgot > s.write.at || j.disturbed(d, s.write.at-2*time.Second, step.At+2*time.Second) {
		return 0
	}
	return min(auto.Sub(j.w.epoch)-before, step.At+s.Patience()) + r.Grace
}

// latestOf returns the last of some bounds, each with its outages.
func latestOf(bounds []bound, outages func(bound) time.Duration) (last time.Duration) {
	for _, b := range bounds {
		last = max(last, b.at+outages(b))
	}
	return last
}

// due returns the earliest instant at which the lock may be removed, outages aside, and since when they count.
func (j *judge) due(d *daemon, s *state) (earliest, since time.Duration, why string) {
	own := s.write.passes
	late, learned := j.heard(d, s)
	if restored := j.changed(d, s); restored > 0 {
		late, learned = true, max(learned, restored)
	}
	if forgot := j.of[d].forgot; forgot > s.write.at { // its patience started again
		late, learned = true, max(learned, forgot-arrival)
	}
	if !s.write.stamped {
		if c := j.claims[s.holder]; c != nil { // rule 5 keeps the clock observation of its acquisition
			own = s.unset(c.Clock.Steps)
		}
		late = late || !s.taken.stamped || s.taken.at < d.started
	}
	patient := learned + s.Patience() + j.w.config.Reaper.Grace
	switch {
	case late:
		return patient, learned, "patience after late knowledge"
	case s.restored == 0 && d.started+5*time.Second < s.taken.at && !j.disturbed(d, s.taken.at-30*time.Second, s.write.at+time.Second):
		return own, max(learned, s.restored), "the holder's own clock"
	case own < patient:
		return own, max(learned, s.restored), "the holder's own clock, and patience"
	}
	return patient, learned, "the holder's own clock, and patience"
}

// outage sums up for how long etcd could not take a renewal since a time, as far as a
// daemon cannot but have seen it.
func (j *judge) outage(d *daemon, since time.Duration) time.Duration {
	return total(j.outages(d, since, func(f fault, long bool) bool { return long && f.end() < j.w.elapsed() }), since, math.MaxInt64)
}

// outages are those for everyone since a time that count, sorted. A long one is seen by each daemon.
func (j *judge) outages(d *daemon, since time.Duration, counts func(f fault, long bool) bool) (all []fault) {
	interval := j.w.config.Reaper.ProbeInterval
	for _, f := range j.w.Faults {
		gap, length := max(interval*3/2, 3*j.delay(d))+precise, f.For
		switch {
		case f.Kind == unanswered: // a probe that was carried out right before may end it
			length = f.end() - max(f.At, since)
		case f.alarms() && !slices.ContainsFunc(j.w.Faults, func(g fault) bool { return g.blocks() && g.At <= f.end() && f.At <= g.end() }):
			gap = interval * 11 / 10 // a probe shows it
		}
		if (f.blocks() || f.alarms()) && (f.Who == everyone || f.Who == "") && f.At > d.started+time.Second && f.end() > since && counts(f, length > gap) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b fault) int { return int(a.At - b.At) })
	return all
}

// total sums up outages from a time on, without those that began after what the others make of an instant.
func total(all []fault, since, from time.Duration) (sum time.Duration) {
	to := since
	for _, f := range all {
		if at := max(f.At, to); f.end() > at && f.At < from+min(sum, math.MaxInt64-from) {
			sum += f.end() - at
			to = f.end()
		}
	}
	return sum
}
