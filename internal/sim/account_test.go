package sim

import (
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// accounts judges S7 at the end of a history: what a daemon counts, lists and shows is what etcd carried out.
func (w *world) accounts() {
	for _, d := range w.daemons {
		if d.ended > 0 {
			continue
		}
		page, err := d.table.Page(w.ctx, api.Query{Limit: 1000})
		check(err)
		stats, listed := d.reaper.Stats(), d.reaper.Ledger().Page("", 1000)
		w.judge.mu.Lock()
		w.judge.counts(d, stats, listed)
		if !w.judge.waits(d) || !d.scanner.Status().Listed.IsZero() {
			w.judge.table(d, page.Items)
		}
		w.judge.mu.Unlock()
	}
}

// counts judges counters and the ledger by the log, and the log by etcd.
func (j *judge) counts(d *daemon, stats reaper.Stats, listed []api.Forced) {
	now := j.w.elapsed()
	if slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return f.Kind == logFull && f.meets(replicas, d.replica) && f.end()+5*time.Second > now
	}) {
		return // what was not logged is logged soon
	}
	var removed, ambiguous uint64
	for _, o := range j.of[d].log.Outcomes {
		switch o.Message {
		case api.LogAmbiguous:
			ambiguous++
		case api.LogRefused, api.LogCannotRemove, api.LogWithdrawn:
			if o.Announcement != nil && slices.ContainsFunc(j.removed, func(r removal) bool {
				return r.by == d && r.name == o.Lock && r.uuid == o.UUID && r.uuid != "" && r.sent == o.Announcement
			}) {
				j.convict("S7", d, o.Lock, "%s, and etcd carried it out", o.Message)
			}
		case api.LogRemoved:
			removed++
			if o.Announcement == nil {
				j.convict("S7", d, "", "removed %s, which was not announced", o.UUID)
				continue
			}
			i := slices.IndexFunc(j.removed, func(r removal) bool { return r.by == d && r.name == o.Lock && r.revision == o.Revision })
			if i < 0 {
				j.convict("S7", d, o.Lock, "logged as removed at %d, where etcd deleted nothing of it", o.Revision)
				continue
			}
			if j.again(j.removed[i]) {
				continue
			}
			if n := entries(listed, j.removed[i], api.Self); n != 1 && len(d.clock.Steps) == 0 {
				j.convict("S7", d, o.Lock, "its removal is listed %d times", n)
			}
		}
	}
	if n := stats.Removed[verdict.Expiry] + stats.Removed[verdict.Orphan]; n != removed {
		j.convict("S7", d, "", "%d removals are counted, %d are in the log", n, removed)
	}
	if n := stats.Failures[lockstore.ReasonAmbiguous]; n != ambiguous {
		j.convict("S7", d, "", "%d removals without an answer are counted, %d are in the log", n, ambiguous)
	}
	const quiet = 30 * time.Second
	for _, r := range slices.Concat(j.removed, j.released) {
		from := min(r.at-quiet, r.stamped-time.Second-j.delay(d)) // a stamp that was long on its way looks like a slow clock
		undisturbed := d.started+quiet < r.at && r.at+time.Second < now && !j.disturbed(d, from, r.at+time.Second)
		if undisturbed && r.past && !j.again(r) && d.clock.Offset == 0 && len(d.clock.Steps) == 0 && entries(listed, r, "") != 1 {
			j.convict("S7", d, r.name, "that it went at %d, past its deadline, is not listed once: %+v", r.revision, listed)
		}
	}
}

// again reports whether a restore made etcd give the token of a removed lock to another, whose removal replaces it in a
// ledger.
func (j *judge) again(r removal) bool {
	return slices.ContainsFunc(j.removed, func(o removal) bool { return o.name == r.name && o.token == r.token && o.uuid != r.uuid })
}

// entries counts those of a ledger that are about a removal by self or other, or "" for both. A lock that a restore
// brought back is listed once.
func entries(listed []api.Forced, r removal, by string) (n int) {
	for _, l := range listed {
		if l.Name == r.name && l.Token == r.token && (r.token != 0 || l.Revision == r.revision) && (by == "" || l.By == by) {
			n++
		}
	}
	return n
}

// table judges that a daemon shows the locks that there are.
func (j *judge) table(d *daemon, shown []table.View) {
	now, quiet := j.w.elapsed(), j.w.config.Reaper.Freshness+20*time.Second
	if now-d.started < quiet || j.disturbed(d, now-quiet, now) || j.waits(d) {
		return
	}
	names := make(map[string]bool)
	for _, v := range shown {
		names[v.Name] = true
		s := j.locks[v.Name]
		if s == nil && !v.Removable() && v.UUID() == "" {
			continue // etcd's own mutexes
		}
		if s == nil || s.touched < now-time.Second && (s.Value("uuid") != v.UUID() || s.Newest() > v.Revision) {
			j.convict("S8", d, v.Name, "shows %q at %d, etcd has %+v", v.UUID(), v.Revision, s)
		}
	}
	for name, s := range j.locks {
		if !names[name] && s.touched < now-time.Second {
			j.convict("S8", d, name, "does not show it")
		}
	}
}
