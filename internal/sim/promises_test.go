package sim

import (
	"math"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// precise is how far apart times may be that should be equal: stamps have nanoseconds,
// but drift between stamp and deadline is not followed.
const precise = 20 * time.Millisecond

// arrival is how long a write may be on its way to a daemon without faults.
const arrival = 50 * time.Millisecond

// sent is called with each request of a daemon as it leaves.
func (j *judge) sent(d *daemon, req memetcd.Message) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.w.elapsed()
	switch r := req.(type) {
	case *pb.AlarmRequest:
		j.of[d].asked[req] = now
	case *pb.PutRequest:
		j.onlyDeletes(d, r.Key)
	case *pb.TxnRequest:
		var removed []string
		j.targets(d, r, &removed)
		if len(removed) > 0 && hasPut(r) {
			j.convict("S5", d, removed[0], "a removal with a put")
		}
		for _, name := range removed {
			j.removal(d, name, now)
		}
	}
}

func (j *judge) onlyDeletes(d *daemon, key []byte) {
	if name, _, below := split(key); below {
		j.convict("S5", d, name, "a write below the prefix")
	}
}

// targets collects the locks that a transaction deletes keys of.
func (j *judge) targets(d *daemon, r *pb.TxnRequest, into *[]string) {
	for _, op := range append(slices.Clip(r.Success), r.Failure...) {
		if nested := op.GetRequestTxn(); nested != nil {
			j.targets(d, nested, into)
		}
		if put := op.GetRequestPut(); put != nil {
			j.onlyDeletes(d, put.Key)
		}
		if del := op.GetRequestDeleteRange(); del != nil {
			if name, _, below := split(del.Key); below && !slices.Contains(*into, name) {
				*into = append(*into, name)
			}
		}
	}
}

func hasPut(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(append(slices.Clip(r.Success), r.Failure...), func(op *pb.RequestOp) bool {
		return op.GetRequestPut() != nil || op.GetRequestTxn() != nil && hasPut(op.GetRequestTxn())
	})
}

// removal judges a removal as it is sent.
func (j *judge) removal(d *daemon, name string, now time.Duration) {
	a := j.of[d].log.Last(name)
	sent := judges.Sending{Logged: a != nil && a.Outcome == "", At: j.w.at(now), Leads: true}
	if sent.Logged {
		a.Sent, sent.Holds = true, j.held(d, now)
		j.of[d].was[name] = j.of[d].freed
		if s := j.locks[name]; s != nil && a.Matches(s.Lock) { // or S1 judges what happens to it
			j.unconfirmed(d, j.early(d, s, now, &sent), &sent)
		}
	}
	j.convictAll(d, name, sent.Judge(j.rules()))
}

// lead is by how much the probe before a removal may begin before due, at most.
const lead = 100 * time.Millisecond

// unconfirmed adds when the probe must have begun that the removal of a lock with some bounds was sent by.
func (j *judge) unconfirmed(d *daemon, bounds []bound, sent *judges.Sending) {
	o, due := j.of[d], latestOf(bounds, func(bound) time.Duration { return 0 })
	sent.Shown, sent.Needed = j.w.at(max(o.good, d.started-1)), j.w.at(max(o.freed, due-lead-precise))
}

// carriedOut begins the text of violations by what etcd carried out.
const carriedOut = "carried out: "

// carried judges a removal when etcd carries it out. What happened after its last probe harms nobody, but a
// pause is obeyed, and a verdict of before a restore is none.
func (j *judge) carried(d *daemon, s *state, a *judges.Announcement, now time.Duration) {
	did := judges.Sending{Logged: true, Leads: true, At: j.w.at(now)}
	bounds := j.early(d, s, now, &did)
	did.Outages = 0
	due := latestOf(bounds, func(b bound) time.Duration {
		over := total(j.outages(d, b.since, func(f fault, long bool) bool { return long && f.end() <= now }), b.since, b.at-lead-precise)
		did.Outages = max(did.Outages, over)
		return over
	})
	for _, f := range j.outages(d, 0, func(f fault, _ bool) bool { return f.At <= now && now < f.end() }) {
		if f.At < max(due, j.of[d].was[s.Name])-lead-precise { // no probe that is late enough was good
			did.Outages, due = max(did.Outages, f.For), max(due, f.end())
		}
	}
	did.Renewable, did.Deadline = j.w.at(due), time.Time{}
	did.Holds = j.since(d, a, did.At)
	for _, v := range did.Judge(j.rules()) {
		j.convict(v.Promise, d, s.Name, carriedOut+"%s", v.Text)
	}
}

// since returns what has happened since a verdict that keeps it from being carried out.
func (j *judge) since(d *daemon, a *judges.Announcement, now time.Time) (all []judges.Hold) {
	hold := func(why string, from time.Duration) {
		all = append(all, judges.Hold{Why: why, In: judges.Span{From: j.w.at(from), To: now.Add(1)}, Acted: judges.Span{From: now, To: now}})
	}
	if j.paused {
		hold("paused", j.pausedSince-1)
	}
	for _, f := range j.w.Faults {
		if f.restores() && a.At.To.Before(j.w.at(f.At)) {
			hold("etcd was restored since the verdict", j.reachable(d, f.At)+j.w.config.Reaper.Freshness+time.Second)
		}
	}
	return all
}

// trial judges what a request of a daemon changed.
func (j *judge) trial(d *daemon, events []*mvccpb.Event, now time.Duration) {
	gone := make(map[string]int)
	for _, ev := range events {
		name, _, below := split(ev.Kv.Key)
		switch {
		case !below:
		case ev.Type == mvccpb.Event_PUT:
			j.convict("S5", d, name, "wrote below the prefix")
		default:
			gone[name]++
		}
	}
	for name, keys := range gone {
		s := j.locks[name]
		j.removals++
		j.removed = append(j.removed, removal{name, s.Value("uuid"), now})
		deletion := judges.Deletion{Lock: s.Lock, Keys: keys, Renewed: now - s.write.at}
		if a := j.of[d].log.Last(name); a != nil {
			deletion.Records = append(deletion.Records, a)
			if a.Matches(s.Lock) {
				j.carried(d, s, a, now)
			}
		}
		deletion.Lives, deletion.Interval = j.living(s, now)
		j.convictAll(d, name, deletion.Judge(j.rules()))
		j.soon(s, now)
	}
}

// living reports whether the holder of a lock must have renewed it since its last write, and how
// often: one that renewed within its interval over a whole connection keeps its lock.
func (j *judge) living(s *state, now time.Duration) (bool, time.Duration) {
	c := j.claims[s.Value("uuid")]
	if c == nil || c.dead || c.Interval == 0 || s.restored > 0 || c.Interval > s.Patience() {
		return false, 0
	}
	if !c.AliveAt && len(c.Clock.Steps) > 0 {
		return false, 0 // rule 5 keeps the clock observation of its acquisition
	}
	return !j.disturbedHost(c.Host, s.write.at, now), c.Interval
}

// held returns the holds that must be in force, or must have been or be before or after now.
func (j *judge) held(d *daemon, now time.Duration) (all []judges.Hold) {
	acted := judges.Span{From: j.w.at(now), To: j.w.at(now)}
	hold := func(why string, from, to time.Duration) {
		all = append(all, judges.Hold{Why: why, In: judges.Span{From: j.w.at(from), To: j.w.at(to)}, Acted: acted})
	}
	const stays = 1000 * time.Hour
	r, o := j.w.config.Reaper, j.of[d]
	hold("starting", d.started-1, d.started+r.Settle)
	hold("no probe has shown for longer than the grace that holders can renew", max(o.good, -stays)+max(r.Grace, 3*(o.took+j.late(d))), stays)
	hold("alarm", o.alarmedFirst+time.Second+j.delay(d)-1, o.alarmedLast+r.Settle)
	if j.paused && !j.cutOff(d, j.pausedSince, now) {
		hold("paused", j.pausedSince+time.Second, stays)
	}
	for _, f := range j.w.Faults {
		if f.At < d.started || !f.meets(replicas, d.replica) {
			continue
		}
		if since := j.undisturbed(d, f) + j.w.config.Etcd.RequestTimeout + r.ProbeInterval + precise; f.blocks() && f.end() > since {
			hold("disconnected: "+string(f.Kind), since, f.end()+r.Settle)
		}
		if f.Kind == newCluster || f.Kind == rolledBack && j.missed(d, f.At) || f.Kind == bumped && j.older[f.At] {
			// A watch that resumes ahead of the store shows nothing until it is stalled.
			since, notice := j.reachable(d, f.At), r.Freshness+time.Second
			if f.Kind == bumped {
				notice = 2 * time.Second
			}
			hold("regressed: "+string(f.Kind), since+notice, since+r.Settle)
		}
	}
	return all
}

// undisturbed returns from when on no other fault decides when a probe is sent.
func (j *judge) undisturbed(d *daemon, f fault) time.Duration {
	since := f.At
	for _, g := range j.w.Faults {
		if slow := g.blocks() || g.Kind == latency || g.Kind == lateAnswers || g.Kind == lag; slow && g != f && g.meets(replicas, d.replica) && g.At <= f.end() {
			since = max(since, g.end())
		}
	}
	return since
}

// missed reports whether a restore took back what a daemon had seen.
func (j *judge) missed(d *daemon, restored time.Duration) bool {
	return slices.ContainsFunc(j.lost[restored], func(at time.Duration) bool {
		at = max(at, d.started+time.Second)
		return at <= restored && !slices.ContainsFunc(j.w.Faults, func(f fault) bool {
			silent := j.w.config.Reaper.Freshness + 8*time.Second // until there is another watch
			return f.At < restored && f.Kind != unreadable && f.Kind != killed && f.meets(replicas, d.replica) && f.At <= at+arrival+f.By && at < f.end()+silent
		})
	})
}

// changed returns when a restore last changed the lock for a daemon, zero for never: not where it
// had not seen what was taken back.
func (j *judge) changed(d *daemon, s *state) time.Duration {
	if s.restored > 0 && (j.of[d].forgot >= s.restored || j.missed(d, s.restored)) {
		return s.restored
	}
	return 0
}

// reachable returns when a daemon can first know what etcd shows from a time on.
func (j *judge) reachable(d *daemon, at time.Duration) time.Duration {
	for _, f := range j.w.Faults {
		if f.blocks() && f.Kind != slowDisk && f.meets(replicas, d.replica) && f.At <= at && at < f.end() {
			at = f.end()
		}
	}
	return at
}

// late is how much longer answers alone may take.
func (j *judge) late(d *daemon) (sum time.Duration) {
	for _, f := range j.w.Faults {
		if f.Kind == lateAnswers && f.meets(replicas, d.replica) {
			sum += f.By
		}
	}
	return sum
}

// delay is how much longer answers may take.
func (j *judge) delay(d *daemon) (sum time.Duration) {
	for _, f := range j.w.Faults {
		if f.meets(replicas, d.replica) {
			sum += f.By
		}
	}
	return sum
}

// disturbed reports whether anything lay between etcd and a daemon within a time, or
// etcd was not itself.
func (j *judge) disturbed(d *daemon, from, to time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return f.Kind != killed && f.Kind != unreadable && f.meets(replicas, d.replica) && f.At <= to && f.end() >= from
	})
}

// cutOff reports whether anything but a pause lay between etcd and a daemon within a time, or so
// shortly before that its watches may not have noticed.
func (j *judge) cutOff(d *daemon, from, to time.Duration) bool {
	unnoticed := j.w.config.Reaper.Freshness + 8*time.Second
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return f.Kind != killed && f.Kind != paused && f.meets(replicas, d.replica) && f.At <= to && f.end()+unnoticed >= from
	})
}

func (j *judge) disturbedHost(host int, from, to time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return (f.blocks() || f.alarms() || f.restores() || f.Kind == latency || f.Kind == lateAnswers) && f.meets(hosts, host) && f.At <= to && f.end() >= from
	})
}

// bound is when a lock may be removed at the earliest, outages aside, and since when these count.
type bound struct{ at, since time.Duration }

// early adds what is known of when a lock may be removed, and returns its bounds.
func (j *judge) early(d *daemon, s *state, now time.Duration, sent *judges.Sending) (bounds []bound) {
	r := j.w.config.Reaper
	if !s.Held() {
		at := max(s.touched, j.changed(d, s)) + r.OrphanGrace
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
	if forgot := j.of[d].forgot; forgot > s.write.at {
		// Its patience started again; earlier outages do not count in addition.
		earliest, since, written = max(earliest, forgot-arrival+s.Patience()+r.Grace), forgot, forgot
	}
	bounds = append(bounds, bound{earliest, since})
	if len(d.clock.Steps) == 0 { // whenever it was learned
		bounds = append(bounds, bound{auto.Sub(j.w.epoch) - d.clock.apart(now) + r.Grace, written})
	}
	sent.Outages, sent.Renewable = j.outage(d, written), j.w.at(latestOf(bounds, func(b bound) time.Duration { return j.outage(d, b.since) }))
	sent.Deadline, sent.Clock = auto, j.w.epoch.Add(now+d.clock.apart(now))
	stale := j.w.at(now - j.w.config.Election.TTL - 2*j.w.config.Etcd.RequestTimeout)
	sent.Leads = j.election.Leader() == "" || j.election.Led(func(identity string) bool { return identity == d.identity() }, math.MaxInt64, stale)
	return bounds
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
	own, learned, late := s.write.passes, max(s.write.at, d.started), s.write.at < d.started
	for _, f := range j.w.Faults {
		stood := f.Kind == unreachable || f.Kind == unanswered
		if stood && f.meets(replicas, d.replica) && f.For > j.w.config.Reaper.ClockTolerance+100*time.Millisecond && f.At+precise < s.write.at && s.write.at < f.end() {
			late, learned = true, max(learned, f.end())
		}
	}
	if restored := j.changed(d, s); restored > 0 {
		late, learned = true, max(learned, restored)
	}
	if !s.write.stamped {
		own = min(own, own+s.write.apart-s.taken.apart)
		late = late || !s.taken.stamped || s.taken.at < d.started
	}
	patient := learned + s.Patience() + j.w.config.Reaper.Grace
	switch {
	case late:
		return patient, learned, "patience after late knowledge"
	case d.started+5*time.Second < s.taken.at && !j.disturbed(d, s.taken.at-30*time.Second, s.write.at+time.Second):
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
	for _, f := range j.w.Faults {
		long := f.blocks() && f.For > j.w.config.Reaper.Grace+precise || f.alarms() && f.For > 1100*time.Millisecond
		if (f.blocks() || f.alarms()) && (f.Who == everyone || f.Who == "") && f.At > d.started+time.Second && f.end() > since && counts(f, long) {
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
