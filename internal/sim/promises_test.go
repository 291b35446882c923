package sim

import (
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
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
	if m, lock := momentOf(req); m == atRead || m == atRemoval {
		j.often(d, lock, now)
	}
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

// often judges how often locks are read and removed: whatever fails is tried again ever more rarely. It ends what would
// continue without time.
func (j *judge) often(d *daemon, lock string, now time.Duration) {
	const most, each, without = 50, 8, 10_000 // to read a lock with others below its name takes five, and a backoff may begin in this second
	o := j.of[d]
	if second := now / time.Second; second != o.second {
		o.second, o.requests = second, 0
	}
	if o.requests++; o.requests == most+each*len(j.claims) {
		j.convict("S6", d, lock, "locks are read or removed %d times within a second", o.requests)
	}
	if o.requests > without {
		panic("locks are read or removed again and again")
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
		a.Sent, sent.Holds = true, j.held(d, name, now)
		j.of[d].was[name] = j.of[d].freed
		if s := j.locks[name]; s != nil && a.Matches(s.Lock) && !j.before(d, a, s) { // or what is carried out is judged
			bounds := j.early(d, s, now, &sent)
			sent.Clock = j.showed(d, sent, now, a.At.To.Sub(j.w.began))
			j.unconfirmed(d, bounds, &sent)
			j.prompt(d, s, a, now)
			j.storm(d, s, bounds, now)
		}
	}
	j.convictAll(d, name, sent.Judge(j.rules()))
}

// due is a lock that came due for a daemon: not before one instant, and not after another. It counts from then, also where
// an outage that is not known yet puts its removal off.
type due struct {
	lock        string
	first, last time.Duration
}

// storm judges that the delay of a storm is kept: a lock came due after so many others for certain, and was not delayed.
func (j *judge) storm(d *daemon, s *state, bounds []bound, now time.Duration) {
	r, o := j.w.config.Reaper.Storm, j.of[d]
	first := latestOf(bounds, func(b bound) time.Duration { return j.outage(d, b.since) })
	lock := s.Name + s.Value("uuid") + s.Value("auto_unlock_at")
	if !s.Held() || slices.ContainsFunc(o.due, func(c due) bool { return c.lock == lock }) {
		return
	}
	before := 0
	for _, c := range o.due {
		if c.first > max(now-r.Window, o.forgot) && c.last < first {
			before++
		}
	}
	if r.MinLocks > 0 && before >= r.MinLocks && float64(before) >= r.Fraction*float64(len(j.claims)) && now < first+r.Delay {
		j.convict("S3", d, s.Name, "%d others came due within a minute before: the delay of a storm was not kept", before)
	}
	o.due = append(o.due, due{lock, latestOf(bounds, func(bound) time.Duration { return 0 }), now})
}

// lead is by how much the probe before a removal may begin before due, at most.
const lead = 100 * time.Millisecond

// unconfirmed adds when the probe must have begun that the removal of a lock with some bounds was sent by.
func (j *judge) unconfirmed(d *daemon, bounds []bound, sent *judges.Sending) {
	o, due := j.of[d], latestOf(bounds, func(bound) time.Duration { return 0 })
	sent.Shown, sent.Needed = j.w.at(max(o.good, d.started-1)), j.w.at(max(o.freed, due-lead-precise))
}

// before reports whether a verdict was made before a restore changed the lock, or on the lock as it was read before, and
// the daemon could not know yet.
func (j *judge) before(d *daemon, a *judges.Announcement, s *state) bool {
	return s.restored > 0 && (!a.At.To.After(j.w.at(s.restored)) || a.Verdict.Revision > s.Newest() && j.changed(d, s) == 0)
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
	forgot := !j.w.at(j.of[d].forgot).Before(a.At.To)
	if forgot || j.before(d, a, s) { // it was sent by what was known before, or the verdict was on the lock of before, with the same deadline
		did.Outages, did.Passes, did.Why = 0, j.w.at(s.write.passes), "the holder's own clock"
	}
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
	if since, paused := j.pausedFor(a.Lock); paused {
		hold("paused", since-1)
	}
	for _, f := range j.w.Faults {
		if j.outdates(f, a) {
			notice := j.w.config.Reaper.Freshness + time.Second
			if f.Kind == newCluster {
				notice = 2*time.Second + j.w.etcd.reconnects()
			}
			hold("etcd was restored since the verdict", j.notices(d, j.reachable(d, f.At), notice+6*j.delay(d)))
		}
	}
	return all
}

// trial judges what a request of a daemon changed.
func (j *judge) trial(d *daemon, events []*mvccpb.Event, now time.Duration) {
	gone, revision := make(map[string]int), int64(0)
	for _, ev := range events {
		revision = ev.Kv.ModRevision
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
		a, r := j.of[d].log.Last(name), j.goes(s, revision, now)
		if a == nil && j.overtaken(d, name, gone) {
			continue // it was not there when the lock was read whose keys lie around its own
		}
		j.removals++
		r.by, r.sent = d, a
		j.removed = append(j.removed, r)
		deletion := judges.Deletion{Lock: s.Lock, Keys: keys, Renewed: now - s.write.at}
		if a != nil {
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

// overtaken reports whether a lock is nested in one that a request deletes, too, and on which the verdict is of before a
// restore.
func (j *judge) overtaken(d *daemon, nested string, gone map[string]int) bool {
	for name := range gone {
		a := j.of[d].log.Last(name)
		if a != nil && strings.HasPrefix(nested, name+"/") && slices.ContainsFunc(j.w.Faults, func(f fault) bool { return j.outdates(f, a) }) {
			return true
		}
	}
	return false
}

// outdates reports whether a fault is a restore after a verdict.
func (j *judge) outdates(f fault, a *judges.Announcement) bool {
	return f.restores() && !a.At.To.After(j.w.at(f.At))
}

// goes returns what is known of a lock whose uuid or last key is deleted.
func (j *judge) goes(s *state, revision int64, now time.Duration) removal {
	auto, dated := s.Deadline()
	past := dated && s.Held() && s.write.passes+time.Second < now && auto.Sub(j.w.epoch)+max(0, s.slowest+time.Second) < now
	if c := j.claims[s.holder]; c != nil && len(c.Clock.Steps) > 0 && !s.write.stamped {
		past = false // an observation of before its clock was set may still count
	}
	stamped := s.taken.at
	if s.write.stamped {
		stamped = s.write.at
	}
	return removal{name: s.Name, uuid: s.Value("uuid"), at: now, token: s.token(), revision: revision, past: past, stamped: stamped}
}

// living reports whether the holder of a lock must have renewed it since its last write, and how
// often: one that renewed within its interval over a whole connection keeps its lock.
func (j *judge) living(s *state, now time.Duration) (bool, time.Duration) {
	c := j.claims[s.Value("uuid")]
	if c == nil || c.dead || c.Interval == 0 || c.Fixed || s.restored > 0 || c.Interval > s.Patience() {
		return false, 0
	}
	if (!c.AliveAt || c.Renews != "") && len(c.Clock.Steps) > 0 {
		return false, 0 // rule 5 keeps the clock observation of its acquisition
	}
	if !s.write.stamped && s.write.at+c.Interval > s.write.passes {
		return false, 0 // its deadline is in whole seconds, or was long on its way, and over when it renews
	}
	return !j.disturbedHost(c.Host, s.write.at, now), c.Interval
}

// held returns the holds that must be in force, or must have been or be before or after now.
func (j *judge) held(d *daemon, name string, now time.Duration) (all []judges.Hold) {
	acted := judges.Span{From: j.w.at(now), To: j.w.at(now)}
	hold := func(kind verdict.Hold, why string, from, to time.Duration) {
		all = append(all, judges.Hold{Hold: string(kind), Why: why, In: judges.Span{From: j.w.at(from), To: j.w.at(to)}, Acted: acted})
	}
	const stays = 1000 * time.Hour
	r, o := j.w.config.Reaper, j.of[d]
	hold(verdict.HoldStarting, "", d.started-1, d.started+r.Settle)
	overdue := verdict.HoldDisconnected
	if o.met > o.good || j.disturbed(d, o.good-30*time.Second, o.good) {
		overdue = "" // shown as an alarm, or later where the probes before took long
	}
	hold(overdue, "no probe has shown for longer than the grace that holders can renew", max(o.good, -stays)+max(r.Grace, 3*(o.took+j.late(d))), stays)
	if !slices.ContainsFunc(j.w.Faults, func(f fault) bool { // the answer of the probe that met the alarm may be lost
		return (f.blocks() || f.Kind == broken) && f.meets(replicas, d.replica) && o.alarmedFirst <= f.At && f.At <= o.alarmedFirst+j.delay(d)+arrival
	}) {
		hold(verdict.HoldAlarm, "", j.notices(d, o.alarmedFirst, time.Second+j.w.etcd.reconnects()+j.delay(d)-1), o.alarmedLast+r.Settle)
	}
	if since, paused := j.pausedFor(name); paused && !j.cutOff(d, since, now) {
		from := since + time.Second
		if _, all := j.pausedFor(""); !all { // the transaction compares what the verdict before it did not know
			from += j.stalledUntil(d, now)
		}
		hold(verdict.HoldPaused, "", from, stays)
	}
	for _, f := range j.w.Faults {
		if f.At < d.started || !f.meets(replicas, d.replica) {
			continue
		}
		if since := j.undisturbed(d, f) + j.w.config.Etcd.RequestTimeout + r.ProbeInterval + precise; f.blocks() && f.end() > since {
			hold(verdict.HoldDisconnected, string(f.Kind), since, f.end()+r.Settle)
		}
		// On a real etcd a restart opens another watch meanwhile, which is silent from then on.
		if from := j.takesEffect(d, f); f.Kind == silentWatch && f.end()-from > r.Freshness+precise && j.w.etcd.reconnects() == 0 {
			hold(verdict.HoldDisconnected, string(f.Kind), from+r.Freshness+precise, f.end()+r.Settle)
		}
		saw := j.notices(d, d.started, time.Second+j.w.etcd.reconnects()+6*j.delay(d)) < f.At // or it knows nothing else
		if f.Kind == newCluster && saw || (f.Kind == rolledBack || f.Kind == bumped) && j.missed(d, f.At) {
			// A watch that resumes ahead of the store shows nothing until it is stalled.
			since, notice := j.reachable(d, f.At), r.Freshness+time.Second+j.w.etcd.reconnects()
			if f.Kind != rolledBack && !j.waits(d) {
				notice = 2*time.Second + j.w.etcd.reconnects() + j.backoff(d, f.At)
			}
			notice += 6 * j.delay(d) // a watch, the revision, the newest write, the revision, progress, and a listing
			notices := j.notices(d, since, notice)
			if j.newer(f.At, notices) || f.Kind == rolledBack && j.compactedSince(f.At, notices) {
				continue
			}
			hold(verdict.HoldRegressed, string(f.Kind), notices, since+r.Settle)
		}
	}
	return all
}
