//go:build hunt

package hunt

import "maps"

// logs are the logs of all daemons.
type logs struct {
	// removed are the removals by what they removed, without those that were found in the replay.
	removed map[removed][]removal
	// ambiguous is how often the result of a removal is not known, by uuid.
	ambiguous map[string]int
	// verdicts are the revisions on which verdicts were made.
	verdicts map[verdictOn]map[int64]bool
}

// removed identifies a lock that was removed at a revision.
type removed struct {
	uuid     string
	revision int64
}

// removal is a removal in the log of a daemon.
type removal struct {
	*daemon
	outcome
}

func (w *world) logs() logs {
	all := logs{map[removed][]removal{}, map[string]int{}, map[verdictOn]map[int64]bool{}}
	for _, s := range w.slots {
		for _, d := range s.past {
			for _, o := range d.log.removals() {
				at := removed{o.uuid, o.revision}
				all.removed[at] = append(all.removed[at], removal{d, o})
			}
			for _, a := range d.log.ambiguous() {
				all.ambiguous[a.uuid]++
			}
			for _, of := range d.log.twice {
				w.violate("S7: a daemon announced the removal of %s again before the outcome", of.name)
			}
			for _, a := range d.log.announce {
				w.checkClock(d, a)
				v := verdictOn{a.name, a.verdict.Token}
				if all.verdicts[v] == nil {
					all.verdicts[v] = map[int64]bool{}
				}
				all.verdicts[v][a.verdict.Revision] = true
			}
		}
	}
	return all
}

// checkClock checks that the verdict was made by the clock that the hunt set.
func (w *world) checkClock(d *daemon, a *announcement) {
	least, most := d.clock.within(span{a.to.Add(-maxLag), a.to})
	if now := a.verdict.Now; now.Add(-most).After(a.to) || now.Add(-least).Before(a.to.Add(-maxLag)) {
		w.violate("the hunt itself: the clock of a daemon showed %s at %s, and should be ahead by %s to %s", now, a.to, least, most)
	}
}

// checkLogs compares the logs of the daemons with what happened.
func (w *world) checkLogs() {
	all := w.logs()
	for _, n := range w.replay.lifetimes {
		if n.forced {
			all.check(w, n)
		}
	}
	for at := range maps.Keys(all.removed) {
		w.violate("S7: the removal of %s at revision %d was logged, but did not happen or was logged twice", at.uuid, at.revision)
	}
}

// check checks what the logs have of a removal, and the daemon that says that it removed the lock.
func (all logs) check(w *world, n *lifetime) {
	switch revisions := all.verdicts[verdictOn{n.name, n.token}]; {
	case revisions == nil:
		w.convict("S4 or S7", n, "no verdict was logged")
	case !revisions[n.newest]:
		w.convict("S1", n, "it was written at revision %d, and the verdicts were on %v", n.newest, revisions)
	}
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
	if d, a := found[0].daemon, found[0].announcement; a == nil {
		w.convict("S7", n, "its outcome was logged without a record before it")
	} else {
		w.checkRemover(n, d, a)
	}
}
