//go:build hunt

package hunt

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// late is the maximum delay after due that S6 allows in times without faults.
	late = 4 * time.Second
	// recovery is the maximum time from the end of the last fault until all daemons
	// remove locks again, without the allowances for outages: pauses between retries, the
	// listing, settle, and the patience for locks that were found by the listing.
	recovery = 24 * time.Second
)

// check looks for violations in everything that happened.
func (w *world) check() {
	w.outages = w.pulse.outages(shortest)
	w.checkLogs()
	for _, n := range w.replay.lifetimes {
		l := w.registry.acquisition(n.uuid)
		if l == nil {
			w.violate("the hunt itself, or S5: lock %s has the unknown uuid %s", n.name, n.uuid)
			continue
		}
		w.checkLifetime(n, l)
	}
	w.checkExclusion()
}

func (w *world) checkLifetime(n *lifetime, l *acquisition) {
	w.checkS6(n, l)
	if n.forced {
		w.checkS2(n, l)
		w.checkS3(n, l)
		w.checkLiving(n, l)
	}
}

// convict records a broken promise by the removal of a lock.
func (w *world) convict(promise string, n *lifetime, format string, args ...any) {
	w.violate("%s: lock %s of %s (token %d) was removed at revision %d, %s into the hunt, %s: %s", promise, n.name, n.uuid, n.token,
		n.end, n.ended.Sub(w.began).Round(time.Millisecond), fmt.Sprintf(format, args...), w.verdictOn(n))
}

// deadline returns auto_unlock_at.
func (n *lifetime) deadline() time.Time { return time.UnixMicro(int64(math.Round(n.autoUnlock * 1e6))) }

// life returns the time in which the deadlines of the lock were made and the lock was there.
func life(n *lifetime, l *acquisition) span {
	to := n.ended
	if to.IsZero() {
		to = time.Now()
	}
	return span{l.first, to}
}

// dueByHolder returns the true time at which the clock of the holder reached the deadline. If the
// clock was set while the lock was there, it is the earliest that any of its settings gives.
func dueByHolder(n *lifetime, l *acquisition) time.Time {
	_, ahead := l.clock.within(life(n, l))
	return n.deadline().Add(-ahead)
}

// checkS2 checks that the removal was not early. The time at which the replay saw it is at
// or after that of the removal.
func (w *world) checkS2(n *lifetime, l *acquisition) {
	if due := dueByHolder(n, l); n.ended.Before(due) {
		w.convict("S2", n, "seen %s before the clock of its holder reached auto_unlock_at", due.Sub(n.ended))
	}
}

// checkS3 checks that a time longer than the grace in which etcd accepted no write delayed
// the removal, if the lock was not written since.
func (w *world) checkS3(n *lifetime, l *acquisition) {
	down := total(w.outages, span{n.written, n.ended}, grace+400*time.Millisecond)
	if early := dueByHolder(n, l).Add(down).Sub(n.ended); down > 0 && early > 0 {
		w.convict("S3", n, "%s too early: etcd was down for %s of the %s since its last write, and the holder alive until %s before",
			early, down, n.ended.Sub(n.written), n.ended.Sub(l.stoppedAt()))
	}
}

// checkLiving checks that the holder did not live and renew within its interval. A request to lock
// that is repeated may take the lock twice: the holder knows the last token.
func (w *world) checkLiving(n *lifetime, l *acquisition) {
	since := span{l.signed, n.ended}
	if l.lives(n.ended) && l.token == n.token && n.ended.Sub(l.signed) <= l.interval() && !l.group.disturbed(since) {
		w.convict("S3", n, "its holder lives, and renewed it %s before", n.ended.Sub(l.signed))
	}
}

// total returns the duration in s of the outages longer than minimum.
func total(outages []span, s span, minimum time.Duration) (sum time.Duration) {
	for _, o := range outages {
		if o.to.Sub(o.from) > minimum {
			sum += o.overlap(s)
		}
	}
	return sum
}

// verdictOn describes the last verdict on a lock.
func (w *world) verdictOn(n *lifetime) string {
	words := "no verdict"
	for i, s := range w.slots {
		for _, d := range s.past {
			for _, a := range d.log.announce {
				if a.verdict.Token == n.token && a.name == n.name {
					v := a.verdict
					words = fmt.Sprintf("the last verdict, of daemon-%d: measured %v, late %v, renewed %v, offset %s, allowance %s, storm delay %s, reason %s, last write seen %s ago (true: %s)",
						i, v.Measured, v.Late, v.Renewed, v.Offset, v.Allowance, v.StormDelay, v.Reason, v.Age, a.to.Sub(n.written))
				}
			}
		}
	}
	return words
}

// latestRemoval returns when the lock must have been removed if there are no faults. An observation
// of the holder's clock from before a step may delay the removal by the step.
func latestRemoval(n *lifetime, l *acquisition) time.Time {
	least, most := l.clock.within(life(n, l))
	return n.written.Add(l.span + max(0, most) + most - least + tolerance + grace + standby + stormDelay + late)
}

func (w *world) checkS6(n *lifetime, l *acquisition) {
	stopped := l.stoppedAt()
	if stopped.IsZero() {
		return
	}
	for _, q := range w.quiets {
		from := q.from.Add(recovery)
		for _, t := range []time.Time{latestRemoval(n, l), stopped.Add(late)} {
			if t.After(from) {
				from = t
			}
		}
		remains := func() bool { return from.Before(q.to) && (n.ended.IsZero() || n.ended.After(from)) }
		if !remains() {
			continue // what follows only moves from, and reads all logs
		}
		if held := w.lastCommonHold(q); held.After(q.from.Add(recovery)) && held.Add(late).After(from) {
			from = held.Add(late)
		}
		// The allowance of a daemon that had not seen the lock until then begins earlier.
		from = from.Add(total(w.outages, span{n.written.Add(-recovery), q.to}, 0))
		if remains() && n.created.Before(from) {
			w.violate("S6: lock %s of %s (token %d, last written %s ago, span %s) was still there after %s without faults",
				n.name, n.uuid, n.token, from.Sub(n.written), l.span, from.Sub(q.from))
			return
		}
	}
}

// lastCommonHold returns the last instant, in a time without faults, at which a hold was in
// force in every daemon, or the zero time. On an idle machine it is long before the end of
// the recovery.
func (w *world) lastCommonHold(q span) time.Time {
	common := []span{q}
	for _, s := range w.slots {
		var both []span
		for _, d := range s.past {
			for _, h := range d.log.held(q.to) {
				for _, c := range common {
					if h.overlap(c) > 0 {
						both = append(both, h.cut(c))
					}
				}
			}
		}
		common = both
	}
	var last time.Time
	for _, c := range common {
		if c.to.After(last) {
			last = c.to
		}
	}
	if len(w.slots) == 0 {
		return time.Time{}
	}
	return last
}

// checkExclusion checks that for each name there is an order of the holders' operations in
// which the lock never has more than one holder.
func (w *world) checkExclusion() {
	histories := w.histories()
	for name, history := range histories {
		if got := porcupine.CheckOperationsTimeout(exclusion(), history, 30*time.Second); got != porcupine.Ok {
			w.violate("exclusion: the history of %s (%d operations) is %s", name, len(history), got)
		}
	}
}

// exclusion is the model of a lock. Its state is the token of the holder, 0 for none.
func exclusion() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			holder, o := state.(int64), input.(op)
			switch o.kind {
			case acquired:
				return holder == 0, o.token
			case freed:
				return holder == o.token, int64(0)
			case lost:
				return holder != o.token, holder
			default:
				return holder == o.token, holder
			}
		},
	}
}

// histories returns the operations of the holders by name. From the replay it adds those
// whose transactions were executed but not answered.
func (w *world) histories() map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	known := map[int64]bool{}
	add := func(name string, o op) {
		all[name] = append(all[name], porcupine.Operation{Input: o, Call: o.from.UnixNano(), Return: o.to.UnixNano()})
	}
	for name, ops := range w.registry.ops {
		for _, o := range ops {
			if o.kind == acquired {
				known[o.token] = true
			}
			add(name, o)
		}
	}
	replayed := map[int64]bool{}
	for _, n := range w.replay.lifetimes {
		replayed[n.token] = true
		l := w.registry.acquisition(n.uuid)
		if l == nil {
			continue
		}
		if !known[n.token] {
			add(n.name, op{acquired, n.token, span{l.first, n.created}})
		}
		if n.ended.IsZero() {
			continue
		}
		s, answered := w.registry.releases[n.end]
		switch {
		case answered:
		case n.forced:
			s = span{w.announced(n), n.ended}
		default:
			s = span{l.releasing, n.ended}
		}
		add(n.name, op{freed, n.token, s})
	}
	for token := range known {
		if !replayed[token] {
			w.violate("exclusion: a holder has token %d, which is not in the replay", token)
		}
	}
	return all
}

// announced returns a time before which no daemon sent the removal of a lock.
func (w *world) announced(n *lifetime) time.Time {
	first, found := n.created, false
	for _, s := range w.slots {
		for _, d := range s.past {
			for _, a := range d.log.announce {
				if a.verdict.Token == n.token && a.name == n.name && (!found || a.from.Before(first)) {
					first, found = a.from, true
				}
			}
		}
	}
	return first
}
