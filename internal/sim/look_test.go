package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// forecast begins the text of violations by what a daemon says that it will do.
const forecast = "forecast: "

// looks are the instants at which the daemons are asked for their holds and verdicts, as the API shows them: what a
// rule is for then shows for each lock that there is, and not only where one is removed in that moment.
func (h history) looks() (all []time.Duration) {
	const settle, every = 15 * time.Second, 7 * time.Second
	for at := 3 * time.Second; at < h.Lasts; at += every {
		all = append(all, at)
	}
	for _, f := range h.Faults {
		all = append(all, f.end()-time.Millisecond, f.end()+3500*time.Millisecond, f.end()+settle-500*time.Millisecond)
	}
	for _, o := range h.Holders {
		all = append(all, o.last()+o.TTL)
	}
	slices.Sort(all)
	last := time.Duration(0)
	return slices.DeleteFunc(all, func(at time.Duration) bool {
		near := at-last < 500*time.Millisecond
		if !near {
			last = at
		}
		return near || at >= h.Lasts
	})
}

// look judges what the daemons show.
func (w *world) look() {
	for _, d := range w.daemons {
		if d.ended > 0 {
			continue
		}
		page, err := d.table.Page(w.ctx, api.Query{Limit: 1000})
		check(err)
		w.judge.shown(d, page.Items)
	}
}

func (j *judge) shown(d *daemon, locks []table.View) {
	holding := d.reaper.Holding()
	verdicts := make([]verdict.Verdict, len(locks))
	for i, v := range locks {
		verdicts[i] = d.reaper.Verdict(v)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.w.elapsed()
	j.showsHolds(d, holding, now)
	outage, calm := j.during(d, now)
	if calm = calm || j.calm(d, now); calm {
		for i, v := range locks {
			if s := j.locks[v.Name]; s != nil && v.Revision >= s.Newest() && v.UUID() == s.Value("uuid") {
				j.foretold(d, s, verdicts[i], now, outage)
			}
		}
	}
}

// showsHolds judges that the holds are shown which must be in force.
func (j *judge) showsHolds(d *daemon, holding []api.Hold, now time.Duration) {
	const gate = 100 * time.Millisecond // it looks twice in that time
	for _, h := range j.held(d, "", now) {
		h.Acted = judges.Span{From: j.w.at(now - gate), To: j.w.at(now + gate)}
		if h.Hold != "" && h.Broken() && !slices.ContainsFunc(holding, func(a api.Hold) bool {
			return string(a.Hold) == h.Hold || h.Hold == string(verdict.HoldStarting) && a.Hold == verdict.HoldRegressed
		}) {
			j.convict("S8", d, "", "%sdoes not show the hold %s: %s; it shows %+v", forecast, h.Hold, h.Why, holding)
		}
	}
	quiet := j.w.config.Reaper.Settle + j.w.config.Reaper.Freshness + 20*time.Second
	_, paused := j.pausedFor("")
	if d.started+quiet < now && !j.disturbed(d, now-quiet, now) && len(holding) > 0 && len(j.alarms) == 0 && !paused && !j.waits(d) {
		j.convict("S6", d, "", "%sshows a hold without a reason: %+v", forecast, holding[0])
	}
}

// waits reports whether the token of a daemon may be of before a restore: a real etcd answers no request with it until it
// has got there again.
func (j *judge) waits(d *daemon) bool {
	return j.w.etcd.reconnects() > 0 && slices.ContainsFunc(j.w.Faults, func(f fault) bool { return f.restores() && f.At > d.started })
}

// calm reports whether a daemon must know all that etcd shows, and what was wrong before.
func (j *judge) calm(d *daemon, now time.Duration) bool {
	knows := 3*time.Second + j.w.etcd.reconnects() // the next probe was answered
	return d.started+knows < now && !slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		over := f.end() + knows + 2*f.By
		if f.restores() {
			over = j.reachable(d, f.end()) + knows + j.w.config.Reaper.Freshness + 8*time.Second
		}
		return f.Kind != paused && f.meets(replicas, d.replica) && f.At <= now && now < over
	})
}

// during returns for how long an outage lasts that a daemon must know, and whether it knows all else.
func (j *judge) during(d *daemon, now time.Duration) (lasts time.Duration, only bool) {
	i := slices.IndexFunc(j.w.Faults, func(f fault) bool {
		return f.blocks() && f.Who == everyone && f.At <= now && now < f.end() && now-f.At > j.w.config.Reaper.ProbeInterval*3/2+precise
	})
	if i < 0 || j.disturbed(d, j.w.Faults[i].At-30*time.Second, j.w.Faults[i].At-1) || d.started+30*time.Second > now {
		return 0, false
	}
	f := j.w.Faults[i]
	only = !slices.ContainsFunc(j.w.Faults, func(o fault) bool {
		return o != f && o.Kind != paused && o.meets(replicas, d.replica) && f.At <= o.end() && o.At <= now
	})
	return now - f.At, only
}

// mostOutages sums up for how long a daemon may have found at most that etcd could take no renewal, what lies in two
// outages once.
func (j *judge) mostOutages(d *daemon, now time.Duration) time.Duration {
	probe := 2 * j.w.config.Reaper.ProbeInterval
	var all []fault
	for _, f := range j.w.Faults {
		if f.restores() { // how long a real etcd takes for that is not known
			return math.MaxInt64
		}
		if f.Kind != paused && f.Kind != killed && f.meets(replicas, d.replica) && f.At < now {
			f.At, f.For = f.At-probe, f.For+2*probe+f.By+j.w.etcd.reconnects()
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return total(all, d.started, math.MaxInt64)
}

// foretold judges a verdict by when it would remove the lock, if nothing more happened. An outage in progress counts.
func (j *judge) foretold(d *daemon, s *state, v verdict.Verdict, now, outage time.Duration) {
	auto, dated := s.Deadline()
	acts := v.Action == verdict.Wait || v.Action == verdict.Remove
	if s.Held() && acts != dated {
		j.convict("S8", d, s.Name, "%sdeadline %q, verdict %s", forecast, s.Value("auto_unlock_at"), v.Action)
		return
	}
	if !acts {
		return
	}
	if !s.Held() && (s.Fields["x"] != nil || s.Fields["zone"] != nil) {
		j.convict("S8", d, s.Name, "%sremoves what no lock of protocol 1 leaves", forecast)
	}
	if since, paused := j.pausedFor(s.Name); paused && v.Action == verdict.Remove && since+time.Second < now {
		if _, all := j.pausedFor(""); !all && !j.cutOff(d, since, now) {
			j.convict("S3", d, s.Name, "%sremoved now, and paused since %s", forecast, since)
		}
	}
	if most := j.mostOutages(d, now); v.Allowance > most && !j.disturbed(d, now-10*time.Second, now) {
		j.convict("S6", d, s.Name, "%s%s of outages count, at most %s were", forecast, v.Allowance, most)
	}
	at := now + max(0, v.Remaining)
	at += (at - now) / 1_000_000 * time.Duration(d.clock.Slewed) // it will find that its clock ran too fast
	sent := judges.Sending{Logged: true, At: j.w.at(at)}
	j.early(d, s, now, &sent)
	if outage > 0 && s.Held() {
		sent.Outages, sent.Renewable = sent.Outages+outage, sent.Renewable.Add(outage)
	}
	sent.Clock = j.w.epoch.Add(at + d.clock.apart(now)) // as long as it is not set
	for _, b := range sent.Judge(j.rules()) {
		j.convict(b.Promise, d, s.Name, forecast+"%s", b.Text)
	}
	if latest := j.latest(d, s, auto, now); s.Held() && s.Name != guarded && v.Reason != verdict.ByPause && (j.w.Rate == 0 || at > now) && outage == 0 && !j.waits(d) && at > latest {
		j.convict("S6", d, s.Name, "%sremoved %s after it should be at the latest: %+v", forecast, at-latest, v)
	}
}
