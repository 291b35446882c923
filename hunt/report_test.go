//go:build hunt

package hunt

import (
	"slices"
	"time"
)

// report logs what was done.
func (w *world) report(took time.Duration) {
	var forced, unlocked, living, connected int
	var delays []time.Duration
	for _, n := range w.replay.lifetimes {
		if !n.forced {
			unlocked++
			continue
		}
		forced++
		l := w.registry.acquisition(n.uuid)
		if l == nil {
			continue
		}
		if l.lives(n.ended) {
			living++
			if !l.group.disturbed(span{From: n.dated, To: n.ended}) {
				connected++
				w.t.Logf("removed while the holder renewed and its connections were not disturbed: %s of %s after %s, span %s, etcd down for %v",
					n.Name, n.uuid, n.ended.Sub(n.dated), l.span, w.pulse.within(span{From: n.dated, To: n.ended}))
			}
		}
		for _, q := range w.quiets {
			_, ahead := l.clock.within(life(n, l))
			due := dueByHolder(n, l).Add(grace + max(0, ahead))
			if due.After(q.From.Add(recovery)) && n.ended.Before(q.To) {
				delays = append(delays, n.ended.Sub(due))
			}
		}
	}
	var counted, logged, ambiguous, stormy, ran int
	for _, s := range w.slots {
		for _, d := range s.past {
			ran++
			counted += d.counted
			logged += len(d.log.Removals())
			ambiguous += len(d.log.Ambiguous())
			for _, a := range d.log.Announced {
				if a.Verdict.StormDelay > 0 {
					stormy++
				}
			}
		}
	}
	if forced < logged || forced > logged+ambiguous {
		w.violate("S7: %d forced deletions, %d logged and %d ambiguous", forced, logged, ambiguous)
	}
	for _, q := range w.quiets {
		held := w.lastCommonHold(q)
		if !held.After(q.From.Add(recovery)) {
			continue
		}
		if stalls := w.pulse.within(span{From: q.From, To: held}); len(stalls) > 0 {
			w.t.Logf("all daemons had a hold %s after the last fault: the machine is too busy to check S6, and etcd was down for %v", held.Sub(q.From), stalls)
		} else {
			w.violate("S6: all daemons had a hold %s after the last fault, and etcd was not down", held.Sub(q.From))
		}
	}
	kinds, count := w.faults.kinds()
	for _, k := range kinds {
		w.t.Logf("%5d  %s", count[k], k)
	}
	outages := w.pulse.outages(grace)
	w.t.Logf("%d faults, %d lifetimes (%d unlocked, %d forced), %d revisions, %d outages of etcd longer than the grace, %d daemons, in %s",
		w.faults.total(), len(w.replay.lifetimes), unlocked, forced, w.replay.revision(), len(outages), ran, took.Round(time.Second))
	w.t.Logf("forced: %d logged, %d in the last scrapes, %d ambiguous; %d verdicts with a storm delay; %d hit a holder that renewed, %d of them one whose connections were not disturbed",
		logged, counted, ambiguous, stormy, living, connected)
	if slices.Sort(delays); len(delays) > 0 {
		w.t.Logf("delay after due without faults (true clock): n %d, p50 %s, p99 %s, maximum %s", len(delays),
			delays[len(delays)/2], delays[len(delays)*99/100], delays[len(delays)-1])
	}
}
