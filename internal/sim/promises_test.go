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
		if s := j.locks[name]; s != nil && a.Matches(s.Lock) { // or S1 judges what happens to it
			j.early(d, s, now, &sent)
		}
	}
	j.convictAll(d, name, sent.Judge(j.rules()))
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
	hold("no probe has shown for longer than the grace that holders can renew", max(o.good, -stays)+r.Grace, stays)
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
		if slow := g.blocks() || g.Kind == latency || g.Kind == lag; slow && g != f && g.meets(replicas, d.replica) && g.At <= f.end() {
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
		return (f.blocks() || f.alarms() || f.restores() || f.Kind == latency) && f.meets(hosts, host) && f.At <= to && f.end() >= from
	})
}

// early adds what is known of when a lock may be removed.
func (j *judge) early(d *daemon, s *state, now time.Duration, sent *judges.Sending) {
	r := j.w.config.Reaper
	if !s.Held() {
		sent.Passes, sent.Why = j.w.at(max(s.touched, j.changed(d, s))+r.OrphanGrace), "an orphan"
		return
	}
	auto, dated := s.Deadline()
	if !dated {
		return // S8 judges it
	}
	earliest, since, why := j.due(d, s)
	sent.Passes, sent.Why = j.w.at(earliest), why
	written := max(s.write.at, s.restored, d.started)
	if forgot := j.of[d].forgot; forgot > s.write.at {
		// Its patience started again; earlier outages do not count in addition.
		earliest, since, written = max(earliest, forgot-arrival+s.Patience()+r.Grace), forgot, forgot
	}
	sent.Outages = j.outage(d, written)
	renewable := earliest + j.outage(d, since)
	if len(d.clock.Steps) == 0 { // whenever it was learned
		renewable = max(renewable, auto.Sub(j.w.epoch)-d.clock.apart(now)+r.Grace+sent.Outages)
	}
	sent.Renewable = j.w.at(renewable)
	sent.Deadline, sent.Clock = auto, j.w.epoch.Add(now+d.clock.apart(now))
	stale := j.w.at(now - j.w.config.Election.TTL - 2*j.w.config.Etcd.RequestTimeout)
	sent.Leads = j.election.Leader() == "" || j.election.Led(func(identity string) bool { return identity == d.identity() }, math.MaxInt64, stale)
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
func (j *judge) outage(d *daemon, since time.Duration) (sum time.Duration) {
	type span struct{ from, to time.Duration }
	var spans []span
	for _, f := range j.w.Faults {
		long := f.blocks() && f.For > j.w.config.Reaper.Grace+precise || f.alarms() && f.For > 1100*time.Millisecond
		if long && (f.Who == everyone || f.Who == "") && f.At > d.started+time.Second && f.end() > since && f.end() < j.w.elapsed() {
			spans = append(spans, span{max(f.At, since), f.end()})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	var to time.Duration
	for _, s := range spans {
		if from := max(s.from, to); s.to > from {
			sum += s.to - from
			to = s.to
		}
	}
	return sum
}
