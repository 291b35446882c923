package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// soon judges S6: a lock is gone within a bound after due, of the replica that had to
// be the first.
func (j *judge) soon(s *state, now time.Duration) {
	auto, dated := s.Deadline()
	if !dated || !s.Held() || strings.HasPrefix(s.Name, slow) || s.Name == guarded || j.w.Rate > 0 {
		return
	}
	j.deaths++
	var first *daemon
	var latest time.Duration
	for _, d := range j.all {
		if d.ended > 0 {
			continue
		}
		if at := j.latest(d, s, auto, now); first == nil || at < latest {
			first, latest = d, at
		}
	}
	if first != nil && latest <= j.w.Lasts {
		j.bounded++
	}
	if first != nil {
		j.convictAll(first, s.Name, judges.Stays(j.w.at(now), j.w.at(latest)))
	}
}

// prompt judges that a leader whom nothing kept from it removes a lock when it is due, to the moment.
func (j *judge) prompt(d *daemon, s *state, a *judges.Announcement, now time.Duration) {
	const most, quiet = 5 * time.Millisecond, 30 * time.Second
	v, o := a.Verdict, j.of[d]
	due := a.At.To.Sub(j.w.began) + v.Due.Sub(v.Now)
	first := !slices.ContainsFunc(o.log.Announced, func(b *judges.Announcement) bool { // probes are 50 ms apart
		return b != a && (b.Lock == a.Lock && b.UUID == a.UUID || a.At.To.Sub(b.At.To) < 200*time.Millisecond)
	})
	first = first && !slices.ContainsFunc(j.w.Faults, func(f fault) bool { return f.Kind == unreadable })
	reigns := j.election.Reigns
	leads := j.election.Leader() == d.identity() && j.w.at(due-quiet).After(reigns[len(reigns)-1].Began)
	if late := now - due; late > most && first && leads && j.w.Rate == 0 && len(d.clock.Steps) == 0 && len(o.holds) == 0 && o.freed < due-quiet &&
		s.touched < due-time.Second && d.started < due-quiet && !j.disturbed(d, due-quiet, now) {
		j.convict("S6", d, s.Name, "sent %s after it was due, and nothing kept it", late)
	}
}

// drifts is by how many parts per million rule 8 lets clocks drift.
const drifts = 500

// latest returns when a daemon has removed a lock at the latest.
func (j *judge) latest(d *daemon, s *state, auto time.Time, now time.Duration) time.Duration {
	r := j.w.config.Reaper
	quiet, noticed, allowance := d.started, d.started+time.Second, time.Duration(0)
	for _, f := range j.w.Faults {
		if f.At >= now || f.Kind == killed || f.Kind == unreadable || !f.meets(replicas, d.replica) {
			continue
		}
		// A watch that is silently dead is noticed within the freshness, and the pause
		// before the next is at most 7.5 s.
		quiet = max(quiet, f.end())
		noticed = max(noticed, f.end()+r.Freshness+8*time.Second+f.By)
		allowance += f.For + 8*time.Second
	}
	learned := max(s.write.at+time.Second, noticed)
	apart := d.clock.apart(now)
	// A stamp that was long on its way looks like a slow clock. That the holder's runs fast shows nowhere.
	seems := s.write.seems()
	if !s.write.stamped {
		seems = max(seems, s.slowest)
	}
	due := max(auto.Add(r.Grace-apart).Sub(j.w.epoch), auto.Sub(j.w.epoch)+seems+r.Grace+r.ClockTolerance+time.Second)
	due += max(0, auto.Sub(j.w.epoch)-min(s.write.made+s.write.apart, s.taken.made+s.taken.apart)) / 1_000_000 * drifts
	if j.quietFor(d, s) {
		learned = never
	} else if c := j.claims[s.Value("uuid")]; c != nil { // an observation of before its clock was set delays
		for _, step := range c.Clock.Steps {
			due += step.By.Abs()
		}
	}
	latest := max(noticed+r.Settle, due, s.write.at, learned+s.Patience()+r.Grace) // a renewal may write a deadline of the past
	if len(d.clock.Steps) > 0 {
		for _, step := range d.clock.Steps { // one within the tolerance is noticed when drift has made it more
			latest += min(step.By.Abs(), r.ClockTolerance)
		}
		patience := s.Patience()
		if s.write.again { // rule 7 keeps a deadline, and the patience was another
			patience = 5 * time.Minute
		}
		latest = max(latest, min(now, d.clock.stepped(r.ClockTolerance))+patience+r.Grace+2*time.Second)
	}
	latest += allowance + r.StandbyDelay + time.Second
	if allowance > 0 {
		latest += 8 * time.Second // the pause after what failed
	}
	if len(j.claims)+j.revived >= r.Storm.MinLocks {
		latest += r.Storm.Delay
	}
	return latest
}

// quietFor reports whether a daemon must have observed the holder's clock.
func (j *judge) quietFor(d *daemon, s *state) bool {
	observed := func(w sign) bool {
		return w.stamped && j.of[d].forgot < w.at && d.started+20*time.Second < w.at && !j.disturbed(d, w.at-40*time.Second, w.at+time.Second)
	}
	last := d.started+20*time.Second < s.write.at && !j.disturbed(d, s.write.at-40*time.Second, s.write.at+time.Second)
	return s.restored == 0 && j.of[d].forgot < s.write.at && last && (observed(s.write) || observed(s.taken) && !s.moved)
}
