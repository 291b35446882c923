package sim

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

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
	a := j.of[d].open[name]
	if a == nil || a.concluded {
		j.convict("S7", d, name, "sent without its record in the log")
		return
	}
	a.sent = true
	if why := j.held(d, now); why != "" {
		j.convict("S3", d, name, "sent during a hold: %s", why)
	}
	s := j.locks[name]
	if s == nil || !a.matches(s) {
		return // S1 judges what becomes of it
	}
	j.early(d, s, now)
}

// matches reports whether the lock is still the one that the verdict was made on.
func (a *announcement) matches(s *state) bool {
	return s.value("uuid") == a.uuid && s.newest() <= a.revision && (a.orphan || s.value("auto_unlock_at") == a.deadline)
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
		s, a := j.locks[name], j.of[d].open[name]
		j.removals++
		j.removed = append(j.removed, removal{name, s.value("uuid"), now})
		j.silent(d, s)
		switch {
		case a == nil:
			j.convict("S4", d, name, "deleted %d keys of a lock on which there was no verdict", keys)
			continue
		case !a.matches(s):
			j.convict("S1", d, name, "uuid %s, deadline %s, revision %d; the verdict was on %s, %s, %d",
				s.value("uuid"), s.value("auto_unlock_at"), s.newest(), a.uuid, a.deadline, a.revision)
		case keys != len(s.fields):
			j.convict("S4", d, name, "deleted %d of %d keys", keys, len(s.fields))
		}
		j.living(d, s, now)
		j.soon(s, now)
	}
}

// silent judges S8: a lock without a readable deadline stays.
func (j *judge) silent(d *daemon, s *state) {
	if _, dated := s.deadline(); s.fields["uuid"] != nil && !dated {
		j.convict("S8", d, s.name, "removed with the deadline %q", s.value("auto_unlock_at"))
	}
}

// living judges S3: a holder that renewed within its interval over a whole connection
// keeps its lock.
func (j *judge) living(d *daemon, s *state, now time.Duration) {
	c := j.claims[s.value("uuid")]
	if c == nil || c.dead || c.Interval == 0 || s.restored > 0 || now-s.write.at > c.Interval+precise || c.Interval > s.patience() {
		return
	}
	if !c.AliveAt && len(c.Clock.Steps) > 0 {
		return // rule 5 keeps the clock observation of its acquisition
	}
	if !j.disturbedHost(c.Host, s.write.at, now) {
		j.convict("S3", d, s.name, "its holder lives, and renewed %s ago, interval %s", now-s.write.at, c.Interval)
	}
}

// held returns which hold must be in force, "" for none.
func (j *judge) held(d *daemon, now time.Duration) string {
	r, o := j.w.config.Reaper, j.of[d]
	switch {
	case now < d.started+r.Settle:
		return "starting"
	case now-o.good > r.Grace:
		return "no probe has shown for longer than the grace that holders can renew"
	case now >= o.alarmedFirst+time.Second+j.delay(d) && now < o.alarmedLast+r.Settle:
		return "alarm"
	case j.paused && now > j.pausedSince+time.Second && !j.cutOff(d, j.pausedSince, now):
		return "paused"
	}
	for _, f := range j.w.Faults {
		if f.At < d.started || !f.meets(replicas, d.replica) {
			continue
		}
		if since := j.undisturbed(d, f) + j.w.config.Etcd.RequestTimeout + r.ProbeInterval + precise; f.blocks() && f.end() > since && now > since && now < f.end()+r.Settle {
			return "disconnected: " + string(f.Kind)
		}
		if f.Kind == newCluster || f.Kind == rolledBack && j.missed(d, f.At) || f.Kind == bumped && j.older[f.At] {
			// A watch that resumes ahead of the store shows nothing until it is stalled.
			since, notice := j.reachable(d, f.At), r.Freshness+time.Second
			if f.Kind == bumped {
				notice = 2 * time.Second
			}
			if now > since+notice && now < since+r.Settle {
				return "regressed: " + string(f.Kind)
			}
		}
	}
	return ""
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

// early judges S2 and, for outages, S3.
func (j *judge) early(d *daemon, s *state, now time.Duration) {
	r := j.w.config.Reaper
	if s.fields["uuid"] == nil {
		if at := max(s.touched, j.changed(d, s)) + r.OrphanGrace; now < at-precise {
			j.convict("S2", d, s.name, "an orphan, %s early", at-now)
		}
		return
	}
	auto, dated := s.deadline()
	if !dated {
		return // S8 judges it
	}
	earliest, why := j.due(d, s)
	if now < earliest-precise {
		j.convict("S2", d, s.name, "%s early: %s", earliest-now, why)
	}
	outage := j.outage(d, max(s.write.at, s.restored, d.started))
	if forgot := j.of[d].forgot; forgot > s.write.at {
		// Its patience began anew, beside which outages before do not count.
		earliest, outage = max(earliest, forgot-arrival+s.patience()+r.Grace), j.outage(d, forgot)
	}
	if outage > 0 && now < earliest+outage-precise {
		j.convict("S3", d, s.name, "%s early: %s, and outages of %s", earliest+outage-now, why, outage)
	}
	delay := r.Grace
	if j.leads != "" && j.leads != d.identity() && now-j.leadsSince > j.w.config.Election.TTL+2*j.w.config.Etcd.RequestTimeout {
		delay += r.StandbyDelay
	}
	if left := auto.Add(delay).Sub(j.w.epoch.Add(now + d.clock.apart(now))); left > precise {
		j.convict("S6", d, s.name, "%s before its own clock shows deadline, grace and standby delay; %s leads", left, j.leads)
	}
}

// due returns the earliest instant at which the lock may be removed, outages aside.
func (j *judge) due(d *daemon, s *state) (earliest time.Duration, why string) {
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
	patient := learned + s.patience() + j.w.config.Reaper.Grace
	switch {
	case late:
		return patient, "patience after late knowledge"
	case d.started+5*time.Second < s.taken.at && !j.disturbed(d, s.taken.at-30*time.Second, s.write.at+time.Second):
		return own, "the holder's own clock"
	case own < patient:
		return own, "the holder's own clock, and patience"
	}
	return patient, "the holder's own clock, and patience"
}

// outage sums up for how long etcd could not take a renewal since a time, as far as a
// daemon cannot but have seen it.
func (j *judge) outage(d *daemon, since time.Duration) (sum time.Duration) {
	type span struct{ from, to time.Duration }
	var spans []span
	for _, f := range j.w.Faults {
		long := f.blocks() && f.For > j.w.config.Reaper.Grace+precise || f.alarms() && f.For > 1100*time.Millisecond
		if long && (f.Who == everybody || f.Who == "") && f.At > d.started+time.Second && f.end() > since && f.end() < j.w.elapsed() {
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
