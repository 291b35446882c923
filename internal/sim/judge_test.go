package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// judge holds a run against the promises.
type judge struct {
	w  *world
	mu sync.Mutex
	*truth
	claims map[string]*claim // by uuid
	// revived counts deadlines that may have come due before they were replaced: a storm counts each.
	revived int
	links   map[any]*daemon
	of      map[*daemon]*dossier
	all     []*daemon
	alarms  map[pb.AlarmType]bool
	// lost is when that was written to locks which a restore took back: of one with a bumped revision, where only a
	// listing tells, the newest writes to locks that it showed older than before.
	lost map[time.Duration][]lost
	// paused is since when there is a pause, by its key.
	paused   map[string]time.Duration
	election judges.Election

	violations []violation
	// removals, deaths and bounded count what the judges had to look at: bounded are the
	// locks whose latest end lies within the history.
	removals, deaths, bounded int
	removed, released         []removal
	begun                     map[string]int // holds, by the log
}

// removal is a lock that a daemon removed.
type removal struct {
	name, uuid string
	at         time.Duration
	// token is 0 for an orphan, revision that of the deletion.
	token, revision int64
	// past reports that its deadline had passed by all clocks that are right.
	past bool
	// stamped is when its holder's clock could last be observed.
	stamped time.Duration
	by      *daemon // nil where its holder released it
	// sent is what the daemon announced.
	sent *judges.Announcement
}

// lost is when something was written that a restore took back, and whether a listing showed that still when it did.
type lost struct {
	at     time.Duration
	listed bool
}

// violation is a broken promise.
type violation struct {
	promise string
	at      time.Duration
	text    string
}

// claim is a holder's uuid, with the deadlines that it made.
type claim struct {
	*holder
	dead   bool
	passes map[stamps]sign
}

// stamps are the texts of a deadline, and of the locked_at or alive_at that was written with it, empty for none.
type stamps struct{ deadline, at string }

// dossier is what etcd and the log saw of a daemon.
type dossier struct {
	log judges.Journal
	// asked is when each probe was sent, good when the newest began that was carried
	// out without an alarm; alarmedFirst and alarmedLast are when one met an alarm.
	asked map[memetcd.Message]time.Duration
	good  time.Duration
	// took is how long the newest was on its way.
	took time.Duration
	// holds are those in force, by the log, and since when.
	holds map[string]time.Duration
	// freed is when a hold ended last, by the log, and was when the removal of each lock was sent last.
	freed time.Duration
	was   map[string]time.Duration
	due   []due
	// requests is how often it read or removed locks in this second.
	second   time.Duration
	requests int
	// forgot is when it last found a restore, never before.
	forgot                    time.Duration
	alarmedFirst, alarmedLast time.Duration
	// met is when a probe last met an alarm, whether or not the daemon can have seen that.
	met time.Duration
}

const never = time.Duration(-1) << 62

func newJudge(w *world) *judge {
	return &judge{w: w, truth: newTruth(), claims: make(map[string]*claim), links: make(map[any]*daemon), of: make(map[*daemon]*dossier), lost: make(map[time.Duration][]lost), begun: make(map[string]int), paused: make(map[string]time.Duration), alarms: make(map[pb.AlarmType]bool),
		election: judges.Election{Prefix: w.config.ElectionPrefix()}}
}

func (j *judge) convict(promise string, d *daemon, name, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if d != nil {
		text = fmt.Sprintf("%s (started %s) on %q: %s", d.identity(), d.started, name, text)
	}
	j.violations = append(j.violations, violation{promise, j.w.elapsed(), text})
}

func (j *judge) convictAll(d *daemon, name string, all []judges.Violation) {
	for _, v := range all {
		j.convict(v.Promise, d, name, "%s", v.Text)
	}
}

// rules are those that the judges share with the hunt.
func (j *judge) rules() judges.Rules {
	r := j.w.config.Reaper
	return judges.Rules{Grace: r.Grace, StandbyDelay: r.StandbyDelay, Slack: precise}
}

func (j *judge) failed(d *daemon, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.convict("run", d, "", "a part failed: %v", err)
}

// enter gives a holder its uuid.
func (j *judge) enter(h *holder) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	uuid := fmt.Sprintf("holder-%d", len(j.claims))
	j.claims[uuid] = &claim{holder: h, passes: make(map[stamps]sign)}
	return uuid
}

// intends is called before a holder sends stamps that it made at a time.
func (j *judge) intends(h *holding, made stamps, at time.Duration, clock time.Time) {
	t, ok := judges.Timestamp(made.deadline)
	if !ok {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// Where the holder's clock stepped back, it may make the same deadline again.
	left := t.Sub(clock)
	left -= left / 1_000_000 * time.Duration(h.Clock.Drift)
	passes := j.claims[h.uuid].passes
	again := false
	for before := range passes {
		again = again || before.deadline == made.deadline
	}
	passes[made] = sign{made: at, passes: at + left, apart: clock.Sub(j.w.epoch) - at, drift: h.Clock.Drift, again: again}
}

func (j *judge) died(h *holding) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.claims[h.uuid].dead = true
}

func (j *judge) started(d *daemon) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.links[d.link.id] = d
	j.all = append(j.all, d)
	j.of[d] = &dossier{holds: make(map[string]time.Duration), was: make(map[string]time.Duration), asked: make(map[memetcd.Message]time.Duration), good: never, forgot: never, alarmedFirst: never, alarmedLast: never, met: never}
}

func (j *judge) snapshot() *truth {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.candidates = j.election.Candidates
	return j.truth.clone()
}

// restored is called right before etcd is.
func (j *judge) restored(backup *truth, how kind) {
	j.mu.Lock()
	defer j.mu.Unlock()
	old, now := j.truth, j.w.elapsed()
	clear(j.paused)
	j.truth = backup.clone()
	if how != bumped {
		for _, at := range old.writes[len(j.writes):] {
			j.lost[now] = append(j.lost[now], lost{at, old.shows(at)})
		}
	}
	for name, s := range j.locks {
		was := old.locks[name]
		if how == bumped && was != nil && was.Newest() > s.Newest() && len(was.Fields) == len(s.Fields) && (was.token() == 0) == (s.token() == 0) {
			j.lost[now] = append(j.lost[now], lost{was.touched, true})
		}
		if was == nil || was.write.at != s.write.at || was.Value("uuid") != s.Value("uuid") {
			s.restored, s.back = now, 0
			// It is another lock for a daemon that saw it go, or with another locked_at.
			s.moved = s.moved || was == nil || was.moved || was.Value("uuid") != s.Value("uuid")
			if was != nil && how != bumped && was.Value("uuid") == s.Value("uuid") && was.Value("auto_unlock_at") != s.Value("auto_unlock_at") {
				s.back = was.write.at
			}
		}
	}
	j.election.Restore(backup.candidates, j.w.at(now))
}

// applied is called with each request that etcd carried out.
func (j *judge) applied(a applied) {
	j.mu.Lock()
	defer j.mu.Unlock()
	d := j.links[a.from]
	now := j.w.elapsed()
	if r, is := a.request.(*pb.AlarmRequest); is && a.err == nil && r.Action != pb.AlarmRequest_GET {
		if delete(j.alarms, r.Alarm); r.Action == pb.AlarmRequest_ACTIVATE {
			j.alarms[r.Alarm] = true
		}
	}
	if d != nil {
		if _, probe := a.request.(*pb.AlarmRequest); probe && a.err == nil {
			j.probed(d, a.request.(memetcd.Message), now)
		}
		j.trial(d, a.events, now)
	}
	for _, ev := range a.events {
		if name, field, below := split(ev.Kv.Key); d == nil && below && field == "uuid" && ev.Type == mvccpb.Event_DELETE {
			j.released = append(j.released, j.goes(j.locks[name], ev.Kv.ModRevision, now))
		}
	}
	for _, ev := range a.events {
		if ev.Type == mvccpb.Event_DELETE {
			j.delete(ev.Kv.Key, now)
			continue
		}
		j.revives(ev.Kv, now)
		if s := j.put(ev.Kv, now); s != nil {
			j.signOf(s, ev.Kv, a.events, now)
		}
	}
	for _, ev := range a.events {
		j.election.Apply(ev, j.w.at(now))
	}
	j.pauses(a.events, now)
}

// revives counts a write that may replace a deadline that has come due, where a watch is late also for that.
func (j *judge) revives(kv *mvccpb.KeyValue, now time.Duration) {
	name, field, _ := split(kv.Key)
	if s := j.locks[name]; s != nil && field == "auto_unlock_at" {
		shown := now
		for _, d := range j.all {
			shown = max(shown, now+j.shownLate(d, now))
		}
		if auto, dated := s.Deadline(); dated && auto.Sub(j.w.epoch) < shown { // grace is for the clock of the daemon
			j.revived++
		}
	}
}

// probed records a probe. An alarm that a late answer shows may be over, and hidden by the
// next probe, before the daemon looks.
func (j *judge) probed(d *daemon, req memetcd.Message, now time.Duration) {
	o := j.of[d]
	if len(j.alarms) == 0 {
		o.good, o.took = max(o.good, o.asked[req]), now-o.asked[req]
	} else if o.met = now; j.reachable(d, now) == now && 2*max(now-o.asked[req], j.delay(d))+j.late(d) < j.w.config.Etcd.RequestTimeout {
		// Or its answer may come too late: its probe began before the request, by as much as the first answer takes.
		if now-o.alarmedLast > 10*time.Second {
			o.alarmedFirst = now
		}
		o.alarmedLast = now
	}
	delete(o.asked, req)
}

// signOf records a write of uuid or auto_unlock_at.
func (j *judge) signOf(s *state, kv *mvccpb.KeyValue, events []*mvccpb.Event, now time.Duration) {
	_, field, _ := split(kv.Key)
	if field != "uuid" && field != "auto_unlock_at" {
		return
	}
	taken, stamp, another := false, false, false
	created := slices.ContainsFunc(events, func(ev *mvccpb.Event) bool { // the locked_at of one that is written over is not read
		return string(ev.Kv.Key) == key(s.Name, "uuid") && ev.Kv.CreateRevision == ev.Kv.ModRevision
	})
	for _, ev := range events {
		name, f, _ := split(ev.Kv.Key)
		taken = taken || name == s.Name && f == "uuid" && string(ev.Kv.Value) != s.holder
		stamp = stamp || name == s.Name && (f == "locked_at" && created || f == "alive_at")
		another = another || name == s.Name && f == "locked_at" && !created
	}
	w := sign{made: now}
	uuid, written := s.Value("uuid"), stamps{deadline: s.Value("auto_unlock_at")}
	for _, ev := range events { // which may come in any order
		name, f, _ := split(ev.Kv.Key)
		switch value := string(ev.Kv.Value); {
		case name != s.Name:
		case f == "uuid":
			uuid = value
		case f == "auto_unlock_at":
			written.deadline = value
		case f == "locked_at", f == "alive_at":
			written.at = value
		}
	}
	if c := j.claims[uuid]; c != nil {
		if made, ok := c.passes[written]; ok {
			w = made
		}
	}
	w.at, w.stamped, w.renewal = now, stamp, !taken
	if s.write = w; taken {
		s.taken, s.slowest, s.moved = w, never, false
	}
	if stamp {
		s.slowest = max(s.slowest, w.seems())
	}
	s.moved = s.moved || another
	s.holder = uuid
	s.restored = 0
}

// pauses follows whether removals are paused.
func (j *judge) pauses(events []*mvccpb.Event, now time.Duration) {
	for _, ev := range events {
		of, pause := strings.CutPrefix(string(ev.Kv.Key), j.w.config.PauseKeys())
		switch {
		case !pause:
		case ev.Type == mvccpb.Event_DELETE:
			delete(j.paused, of)
		default:
			j.paused[of] = now
		}
	}
}

// pausedFor returns since when a pause covers a lock, or, without a name, all of them.
func (j *judge) pausedFor(name string) (since time.Duration, is bool) {
	for of, from := range j.paused {
		if of == pause.Key("") || of == pause.Key(broke) || name != "" && of == pause.Key(name) {
			since, is = min(from, cmp.Or(since, from)), true
		}
	}
	return since, is
}

// faults returns what has gone wrong until now, and all that will at a time.
func (j *judge) faults() []fault {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.w.Faults
}

// holderOf returns the uuid of a lock.
func (j *judge) holderOf(lock string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.locks[lock]; s != nil {
		return s.Value("uuid")
	}
	return ""
}

// end is called when the history is over.
func (j *judge) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.w.elapsed()
	for _, s := range j.locks {
		j.soon(s, now)
	}
	for _, d := range j.all {
		if d.ended == 0 {
			j.noLoose(d, now)
		}
	}
}
