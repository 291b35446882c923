//go:build hunt

package hunt

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// What S6 allows beside the due instant, in times without faults.
const (
	late = 4 * time.Second
	// recovery is from the end of the last fault until all daemons remove
	// again: pauses between tries, listing, settling, and patience with what
	// was only listed.
	recovery = 20 * time.Second
)

// judge looks at all that happened.
func (w *world) judge() {
	w.judgeWords()
	outages := w.pulse.outages(grace + 400*time.Millisecond)
	for _, n := range w.replay.tenure {
		l := w.registry.life(n.uuid)
		if l == nil {
			w.violate("the hunt itself, or S5: lock %s has the unknown uuid %s", n.name, n.uuid)
			continue
		}
		w.judgeOne(n, l, outages)
	}
	w.judgeExclusion()
}

func (w *world) judgeOne(n *tenure, l *life, outages []span) {
	w.judgeS6(n, l)
	if n.forced {
		w.judgeS2(n, l)
		w.judgeS3(n, l, outages)
	}
}

// ownDue is when the owner's own clock passed the deadline, by the true clock.
func ownDue(n *tenure, l *life) time.Time {
	return time.UnixMicro(int64(math.Round(n.autoUnlock * 1e6))).Add(-l.offset)
}

// judgeS2: that the removal was seen is not before it was made.
func (w *world) judgeS2(n *tenure, l *life) {
	if due := ownDue(n, l); n.ended.Before(due) {
		w.violate("S2: lock %s of %s (token %d, offset %s) was removed at revision %d, seen %s before its owner's clock reached auto_unlock_at: %s",
			n.name, n.uuid, n.token, l.offset, n.end, due.Sub(n.ended), w.verdictOn(n))
	}
}

// judgeS3: time in which etcd took no write, and which lasted longer than the
// grace, does not count against a lock that was not written since.
func (w *world) judgeS3(n *tenure, l *life, outages []span) {
	var away time.Duration
	for _, o := range outages {
		away += o.overlap(span{n.written, n.ended})
	}
	if left := ownDue(n, l).Add(away).Sub(n.ended); away > 0 && left > 0 {
		w.violate("S3: lock %s of %s (token %d, alive until %s before) was removed at revision %d, %s too soon: etcd was away for %s of the %s since its last write: %s",
			n.name, n.uuid, n.token, n.ended.Sub(l.stoppedAt()), n.end, left, away, n.ended.Sub(n.written), w.verdictOn(n))
	}
}

// verdictOn returns the last verdict on a lock before its end, in words.
func (w *world) verdictOn(n *tenure) string {
	words := "no verdict"
	for i, s := range w.slots {
		for _, d := range s.past {
			for _, a := range d.log.announce {
				if a.name == n.name && a.verdict.Token == n.token {
					v := a.verdict
					words = fmt.Sprintf("daemon-%d: measured %v, late %v, renewed %v, offset %s, allowance %s, storm delay %s, reason %s, last write seen %s ago (true: %s)",
						i, v.Measured, v.Late, v.Renewed, v.Offset, v.Allowance, v.StormDelay, v.Reason, v.Age, v.Now.Sub(n.written))
				}
			}
		}
	}
	return words
}

// deadAt is when the lock was to be gone, were there no faults.
func deadAt(n *tenure, l *life) time.Time {
	return n.written.Add(l.span + max(0, l.offset) + tolerance + grace + standby + late)
}

func (w *world) judgeS6(n *tenure, l *life) {
	stopped := l.stoppedAt()
	if stopped.IsZero() {
		return
	}
	for _, q := range w.quiets {
		from := q.from.Add(recovery)
		for _, t := range []time.Time{deadAt(n, l), stopped.Add(late)} {
			if t.After(from) {
				from = t
			}
		}
		if held := w.allHeld(q); held.After(q.from.Add(recovery)) && held.Add(late).After(from) {
			from = held.Add(late)
		}
		if from.Before(q.to) && (n.ended.IsZero() || n.ended.After(from)) && n.created.Before(from) {
			w.violate("S6: lock %s of %s (token %d, last written %s ago, span %s, offset %s) was still there after %s without faults",
				n.name, n.uuid, n.token, from.Sub(n.written), l.span, l.offset, from.Sub(q.from))
			return
		}
	}
}

// allHeld returns when, in a time without faults, the last instant was at which
// a hold was in force in every daemon; zero for never. On an idle machine that is
// long before the recovery ends.
func (w *world) allHeld(q span) time.Time {
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

// judgeWords compares the daemons' words with what happened.
func (w *world) judgeWords() {
	sure, maybe := map[int64][]string{}, map[string]int{}
	judged := map[verdictOn]map[int64]bool{}
	for _, s := range w.slots {
		for _, d := range s.past {
			for _, o := range d.log.outcome {
				if o.sure {
					sure[o.revision] = append(sure[o.revision], o.uuid)
				} else {
					maybe[o.uuid]++
				}
			}
			for _, a := range d.log.announce {
				v := verdictOn{a.name, a.verdict.Token}
				if judged[v] == nil {
					judged[v] = map[int64]bool{}
				}
				judged[v][a.verdict.Revision] = true
			}
		}
	}
	for _, n := range w.replay.tenure {
		if !n.forced {
			continue
		}
		revs := judged[verdictOn{n.name, n.token}]
		switch {
		case revs == nil:
			w.violate("S4 or S7: lock %s of %s was removed at revision %d, and no verdict was logged", n.name, n.uuid, n.end)
		case !revs[n.newest]:
			w.violate("S1: lock %s of %s was removed at revision %d, though written at revision %d: the verdicts were on %v", n.name, n.uuid, n.end, n.newest, revs)
		}
		i := slices.Index(sure[n.end], n.uuid)
		switch {
		case i >= 0:
			sure[n.end] = slices.Delete(sure[n.end], i, i+1)
		case maybe[n.uuid] == 0:
			w.violate("S7: lock %s of %s was removed at revision %d, and nobody says so", n.name, n.uuid, n.end)
		}
	}
	for rev, uuids := range sure {
		for _, uuid := range uuids {
			w.violate("S7: the removal of %s at revision %d is logged, but was none, or was logged twice", uuid, rev)
		}
	}
}

// judgeExclusion checks, for each name, that what the owners learned fits one
// order of events in which the lock has one holder at most.
func (w *world) judgeExclusion() {
	histories := w.histories()
	for name, history := range histories {
		if got := porcupine.CheckOperationsTimeout(exclusion(), history, 30*time.Second); got != porcupine.Ok {
			w.violate("exclusion: the history of %s (%d operations) is %s", name, len(history), got)
		}
	}
}

// exclusion is a lock: its state is the token of its holder, 0 for none.
func exclusion() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, _ any) (bool, any) {
			holder, o := state.(int64), input.(op)
			switch o.kind {
			case took:
				return holder == 0, o.token
			case ended:
				return holder == o.token, int64(0)
			case lost:
				return holder != o.token, holder
			default:
				return holder == o.token, holder
			}
		},
	}
}

// histories adds to what the owners know what the replay does: when locks were
// taken and ended by transactions that they got no answer to.
func (w *world) histories() map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	known := map[int64]bool{}
	add := func(name string, o op) {
		all[name] = append(all[name], porcupine.Operation{Input: o, Call: o.from.UnixNano(), Return: o.to.UnixNano()})
	}
	for name, ops := range w.registry.ops {
		for _, o := range ops {
			if o.kind == took {
				known[o.token] = true
			}
			add(name, o)
		}
	}
	taken := map[int64]bool{}
	for _, n := range w.replay.tenure {
		taken[n.token] = true
		l := w.registry.life(n.uuid)
		if l == nil {
			continue
		}
		if !known[n.token] {
			add(n.name, op{took, n.token, span{l.first, n.created}})
		}
		if n.ended.IsZero() {
			continue
		}
		s, answered := w.registry.left[n.end]
		switch {
		case answered:
		case n.forced:
			s = span{w.announced(n), n.ended}
		default:
			s = span{l.leaving, n.ended}
		}
		add(n.name, op{ended, n.token, s})
	}
	for token := range known {
		if !taken[token] {
			w.violate("exclusion: an owner was given token %d, which the replay has not", token)
		}
	}
	return all
}

// announced returns when a verdict on the lock was first logged.
func (w *world) announced(n *tenure) time.Time {
	first := n.created
	found := false
	for _, s := range w.slots {
		for _, d := range s.past {
			if at, ok := d.log.first[verdictOn{n.name, n.token}]; ok && (!found || at.Before(first)) {
				first, found = at, true
			}
		}
	}
	return first
}
