//go:build hunt

package hunt

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// rulesOfJudges are those of the daemons' configuration.
var rulesOfJudges = judges.Rules{Grace: grace, StandbyDelay: standby}

// logs are the logs of all daemons.
type logs struct {
	// removed are the removals by what they removed, without those that were found in the replay.
	removed map[removed][]removal
	// ambiguous is how often the result of a removal is not known, by uuid.
	ambiguous map[string]int
	// verdicts are those on what one holder held.
	verdicts map[verdictOn][]*judges.Announcement
}

// removed identifies a lock that was removed at a revision.
type removed struct {
	uuid     string
	revision int64
}

// verdictOn identifies the lock of a verdict.
type verdictOn struct {
	name  string
	token int64
}

// removal is a removal in the log of a daemon.
type removal struct {
	*daemon
	judges.Outcome
}

func (w *world) logs() logs {
	all := logs{map[removed][]removal{}, map[string]int{}, map[verdictOn][]*judges.Announcement{}}
	for _, s := range w.slots {
		for _, d := range s.past {
			for _, o := range d.log.Removals() {
				at := removed{o.UUID, o.Revision}
				all.removed[at] = append(all.removed[at], removal{d, o})
			}
			for _, a := range d.log.Ambiguous() {
				all.ambiguous[a.UUID]++
			}
			for _, v := range d.log.wrong {
				w.violate("%s", v)
			}
			for _, a := range d.log.Announced {
				w.checkClock(d, a)
				v := verdictOn{a.Lock, a.Verdict.Token}
				all.verdicts[v] = append(all.verdicts[v], a)
			}
		}
	}
	return all
}

// checkClock checks that the verdict was made by the clock that the hunt set.
func (w *world) checkClock(d *daemon, a *judges.Announcement) {
	const slewed = 5 * time.Millisecond // by which the wall clock of the machine may have lost on the monotonic one
	to := a.At.To.Add(slewed)
	least, most := d.clock.within(span{From: to.Add(-maxLag), To: to})
	if now := a.Verdict.Now; now.Add(-most).After(to) || now.Add(-least).Before(to.Add(-maxLag)) {
		w.violate("the hunt itself: the clock of a daemon showed %s at %s, and should be ahead by %s to %s", now, to, least, most)
	}
}

// check checks what the logs have of a removal, and the daemon that says that it removed the lock.
func (all logs) check(w *world, n *lifetime, l *acquisition) {
	lives, ago := living(n, l)
	w.convictAll(n, judges.Deletion{
		Lock: n.Lock, Keys: n.deleted, Records: all.verdicts[verdictOn{n.Name, n.token}], Lives: lives, Renewed: ago, Interval: l.interval(),
	}.Judge(rulesOfJudges))
	at := removed{n.uuid, n.end}
	found := all.removed[at]
	if len(found) == 0 {
		if all.ambiguous[n.uuid] == 0 {
			w.convict("S7", n, "no daemon logged it")
		}
		return
	}
	if all.removed[at] = found[1:]; len(found) == 1 {
		delete(all.removed, at)
	}
	w.checkRemover(n, found[0].daemon, found[0].Announcement)
}

// checkLoose finds the removals in the logs that did not happen.
func (all logs) checkLoose(w *world) {
	for at := range maps.Keys(all.removed) {
		w.violate("S7: the removal of %s at revision %d was logged, but did not happen or was logged twice", at.uuid, at.revision)
	}
}

// living reports whether the holder must have renewed a lock until it was removed, and how long
// ago it last did. A request to lock that is repeated may take the lock twice: the holder knows the
// last token.
func living(n *lifetime, l *acquisition) (bool, time.Duration) {
	since := span{From: l.signed, To: n.ended}
	return l.lives(n.ended) && l.token == n.token && !l.group.disturbed(since), n.ended.Sub(l.signed)
}

// noticed is the maximum time from the beginning of an outage until a daemon has a hold: the
// probe in flight ends, and the next one fails.
const noticed = daemonTimeout + probeInterval + 500*time.Millisecond

// staleLeader is the maximum time for which a daemon that runs believes that it leads.
const staleLeader = electionTTL + 2*daemonTimeout

// checkRemover checks what the daemon that removed a lock must have known. It sent the removal
// after the announcement was made, if there is one, and before the end.
func (w *world) checkRemover(n *lifetime, d *daemon, a *judges.Announcement) {
	facts := judges.Sending{Logged: a != nil, At: n.ended}
	if a != nil {
		sent := span{From: a.At.From, To: n.ended}
		own := func(identity string) bool { return strings.HasSuffix(identity, fmt.Sprintf("_%d", d.cmd.Process.Pid)) }
		facts.Leads = w.replay.election.Led(own, n.end, n.ended.Add(-staleLeader)) || d.suspended(span{From: n.ended.Add(-maxLag - staleLeader), To: n.ended})
		_, ahead := d.clock.within(span{From: sent.From.Add(-maxLag), To: sent.To})
		facts.Deadline, facts.Clock = n.deadline(), sent.To.Add(ahead)
		facts.Holds = w.holds(d, a, sent)
	}
	w.convictAll(n, facts.Judge(rulesOfJudges))
}

// holds returns those of a daemon that announced a removal and sent it within a time.
func (w *world) holds(d *daemon, a *judges.Announcement, sent span) []judges.Hold {
	const slack = 500 * time.Millisecond
	last := span{From: sent.To, To: sent.To}
	all := []judges.Hold{{Why: "starting", In: span{From: d.started.Add(-1), To: d.started.Add(settle)}, Acted: last}}
	for _, o := range slices.Concat(d.group.cutOff(), w.outages) {
		// The last look at the signals may have been a while before the end of the outage.
		settles := span{From: o.From.Add(noticed), To: o.To.Add(settle - time.Second)}
		if settles.From.Before(o.To) && d.started.Before(o.From) && !d.suspended(span{From: o.From.Add(-noticed), To: sent.To}) {
			all = append(all, judges.Hold{Why: fmt.Sprintf("within the settle after an outage of %s", o.To.Sub(o.From)), In: settles, Acted: sent})
		}
	}
	for _, o := range w.outages { // no probe can have been answered for longer than the grace
		if overdue := (span{From: o.From.Add(grace + slack), To: o.To.Add(-slack)}); !d.suspended(span{From: o.From, To: sent.To}) {
			all = append(all, judges.Hold{Why: fmt.Sprintf("an outage of %s", o.To.Sub(o.From)), In: overdue, Acted: a.At})
		}
	}
	return all
}
