//go:build hunt

package hunt

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
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
	logs := w.logs()
	for _, n := range w.replay.lifetimes {
		l := w.registry.acquisition(n.uuid)
		if l == nil {
			w.violate("the hunt itself, or S5: lock %s has the unknown uuid %s", n.Name, n.uuid)
			continue
		}
		w.checkLifetime(n, l)
		if n.forced {
			logs.check(w, n, l)
		}
	}
	logs.checkLoose(w)
	w.checkExclusion()
}

// checkLifetime checks S6 and, of a lock that was removed, that the clock of its holder had passed
// the deadline, S2, and that a time longer than the grace in which etcd accepted no write delayed
// the removal, S3, if the lock was not written since. The time at which the replay saw the removal
// is at or after that of the removal.
func (w *world) checkLifetime(n *lifetime, l *acquisition) {
	w.checkS6(n, l)
	if !n.forced {
		return
	}
	due, down := dueByHolder(n, l), total(w.outages, span{From: n.written, To: n.ended}, grace+400*time.Millisecond)
	w.convictAll(n, judges.Sending{
		Logged: true, Leads: true, At: n.ended, Passes: due, Why: "the clock of its holder", Outages: down, Renewable: due.Add(down),
	}.Judge(rulesOfJudges))
}

func (w *world) convictAll(n *lifetime, all []judges.Violation) {
	for _, v := range all {
		w.convict(v.Promise, n, "%s", v.Text)
	}
}

// convict records a broken promise by the removal of a lock.
func (w *world) convict(promise string, n *lifetime, format string, args ...any) {
	w.violate("%s: lock %s of %s (token %d) was removed at revision %d, %s into the hunt, %s: %s", promise, n.Name, n.uuid, n.token,
		n.end, n.ended.Sub(w.began).Round(time.Millisecond), fmt.Sprintf(format, args...), w.verdictOn(n))
}

// deadline returns auto_unlock_at.
func (n *lifetime) deadline() time.Time {
	at, _ := n.Deadline()
	return at
}

// life returns the time in which the deadlines of the lock were made and the lock was there.
func life(n *lifetime, l *acquisition) span {
	to := n.ended
	if to.IsZero() {
		to = time.Now()
	}
	return span{From: l.first, To: to}
}

// dueByHolder returns the true time at which the clock of the holder reached the deadline. If the
// clock was set while the lock was there, it is the earliest that any of its settings gives.
func dueByHolder(n *lifetime, l *acquisition) time.Time {
	_, ahead := l.clock.within(life(n, l))
	return n.deadline().Add(-ahead)
}

// total returns the duration in s of the outages longer than minimum.
func total(outages []span, s span, minimum time.Duration) (sum time.Duration) {
	for _, o := range outages {
		if o.To.Sub(o.From) > minimum {
			sum += o.Overlap(s)
		}
	}
	return sum
}

// verdictOn describes the last verdict on a lock.
func (w *world) verdictOn(n *lifetime) string {
	words := "no verdict"
	for i, s := range w.slots {
		for _, d := range s.past {
			for _, a := range d.log.Announced {
				if a.Verdict.Token == n.token && a.Lock == n.Name {
					v := a.Verdict
					words = fmt.Sprintf("the last verdict, of daemon-%d: measured %v, late %v, renewed %v, offset %s, allowance %s, storm delay %s, reason %s, last write seen %s ago (true: %s)",
						i, v.Measured, v.Late, v.Renewed, v.Offset, v.Allowance, v.StormDelay, v.Reason, v.Age, a.At.To.Sub(n.written))
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
		from := q.From.Add(recovery)
		for _, t := range []time.Time{latestRemoval(n, l), stopped.Add(late)} {
			if t.After(from) {
				from = t
			}
		}
		remains := func() bool { return from.Before(q.To) && (n.ended.IsZero() || n.ended.After(from)) }
		if !remains() {
			continue // what follows only moves from, and reads all logs
		}
		if held := w.lastCommonHold(q); held.After(q.From.Add(recovery)) && held.Add(late).After(from) {
			from = held.Add(late)
		}
		// The allowance of a daemon that had not seen the lock until then begins earlier.
		from = from.Add(total(w.outages, span{From: n.written.Add(-recovery), To: q.To}, 0))
		if remains() && n.created.Before(from) {
			w.violate("S6: lock %s of %s (token %d, last written %s ago, span %s) was still there after %s without faults",
				n.Name, n.uuid, n.token, from.Sub(n.written), l.span, from.Sub(q.From))
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
			for _, h := range d.log.held(q.To) {
				for _, c := range common {
					if h.Overlap(c) > 0 {
						both = append(both, h.Cut(c))
					}
				}
			}
		}
		common = both
	}
	var last time.Time
	for _, c := range common {
		if c.To.After(last) {
			last = c.To
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
		all[name] = append(all[name], porcupine.Operation{Input: o, Call: o.From.UnixNano(), Return: o.To.UnixNano()})
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
			add(n.Name, op{acquired, n.token, span{From: l.first, To: n.created}})
		}
		if n.ended.IsZero() {
			continue
		}
		s, answered := w.registry.releases[n.end]
		switch {
		case answered:
		case n.forced:
			s = span{From: w.announced(n), To: n.ended}
		default:
			s = span{From: l.releasing, To: n.ended}
		}
		add(n.Name, op{freed, n.token, s})
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
			for _, a := range d.log.Announced {
				if a.Verdict.Token == n.token && a.Lock == n.Name && (!found || a.At.From.Before(first)) {
					first, found = a.At.From, true
				}
			}
		}
	}
	return first
}
