package sim

import (
	"slices"
	"time"
)

// stalledUntil returns for how long the removal was stalled that goes on a connection now.
func (j *judge) stalledUntil(d *daemon, now time.Duration) (longest time.Duration) {
	for _, f := range j.w.Faults {
		if f.alone() && !f.After && f.meets(replicas, d.replica) && f.end() <= now && now < f.end()+precise {
			longest = max(longest, f.For)
		}
	}
	return longest
}

// undisturbed returns from when on no other fault decides when a probe is sent.
func (j *judge) undisturbed(d *daemon, f fault) time.Duration {
	since := f.At
	for _, g := range j.w.Faults {
		if slow := g.blocks() || g.Kind == latency || g.Kind == lateAnswers || g.Kind == lag; slow && g != f && g.meets(replicas, d.replica) && g.At <= f.end() {
			since = max(since, g.end())
		}
	}
	return since
}

// missed reports whether a daemon had seen one of the writes that a restore took back.
func (j *judge) missed(d *daemon, restored time.Duration) bool {
	return slices.ContainsFunc(j.lost[restored], func(l lost) bool { return (l.listed || l.at >= d.started) && j.saw(d, restored, l.at) })
}

// saw reports whether a daemon had seen a write when a restore took it back.
func (j *judge) saw(d *daemon, restored, at time.Duration) bool {
	at = max(at, d.started+time.Second)
	return at+arrival <= restored && !slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		silent := j.w.config.Reaper.Freshness + 8*time.Second // until there is another watch
		return f.At < restored && f.Kind != unreadable && f.Kind != killed && f.meets(replicas, d.replica) && f.At <= at+arrival+f.By && at < f.end()+silent
	})
}

// newer reports whether a lock that a restore with a bumped revision showed older may be newer again before it is listed.
func (j *judge) newer(restored, notices time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool { return f.Kind == bumped && f.At == restored }) &&
		slices.ContainsFunc(j.writes, func(at time.Duration) bool { return restored <= at && at <= notices })
}

// compactedSince reports whether etcd may no longer have what the newest write that was seen is compared with.
func (j *judge) compactedSince(restored, notices time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool { return f.Kind == compacted && restored <= f.At && f.At <= notices })
}

// changed returns when a restore last changed the lock for a daemon, zero for never: not where it
// had not seen what was taken back.
func (j *judge) changed(d *daemon, s *state) time.Duration {
	knows := func() bool { // what is sent in the moment of the restore is not of after it
		notices := j.notices(d, s.restored, j.w.config.Reaper.Freshness+time.Second+j.w.etcd.reconnects()+6*j.delay(d))
		return j.missed(d, s.restored) && j.w.elapsed() > notices && !j.newer(s.restored, notices)
	}
	if s.restored > 0 && (j.of[d].forgot >= s.restored || s.back > 0 && d.started < s.restored && j.saw(d, s.restored, s.back) || knows()) {
		return s.restored
	}
	return 0
}

// backoff returns how long a daemon may wait before it watches again, for the faults that have lasted until a time.
func (j *judge) backoff(d *daemon, at time.Duration) (longest time.Duration) {
	const most = 7500 * time.Millisecond
	for _, f := range j.w.Faults {
		stalls := f.Kind == silentWatch || f.Kind == lateWatch && f.By > j.w.config.Reaper.Freshness
		if (f.blocks() || stalls) && f.meets(replicas, d.replica) && f.At <= at && at < f.end()+most {
			longest = max(longest, min(f.For, most))
		}
	}
	return longest
}

// reachable returns when a daemon can first know what etcd shows from a time on.
func (j *judge) reachable(d *daemon, at time.Duration) time.Duration {
	for more := true; more; {
		more = false
		for _, f := range j.w.Faults {
			if f.blocks() && f.Kind != slowDisk && f.meets(replicas, d.replica) && f.At <= at && at < f.end() {
				at, more = f.end(), true
			}
		}
	}
	return at
}

// notices returns when a daemon has noticed at the latest what etcd shows from a time on, which takes some time without
// interruption.
func (j *judge) notices(d *daemon, from, takes time.Duration) time.Duration {
	for more := true; more; {
		more = false
		for _, f := range j.w.Faults {
			end := f.end()
			if f.Kind == lateWatch {
				end += f.By // what came last is shown then
			}
			if (f.blocks() || f.Kind == stalled && !f.alone() || f.Kind == silentWatch || f.Kind == lateWatch) && f.meets(replicas, d.replica) && f.At < from+takes && from < end {
				from, more = end, true
			}
		}
	}
	return from + takes
}

// shownLate is how long after a write the watch of a daemon shows it.
func (j *judge) shownLate(d *daemon, at time.Duration) (by time.Duration) {
	for _, f := range j.w.Faults {
		if f.Kind == lateWatch && f.meets(replicas, d.replica) && f.At <= at && at < f.end() {
			by = max(by, f.By)
		}
	}
	return by
}

// late is how much longer answers alone may take.
func (j *judge) late(d *daemon) (sum time.Duration) {
	for _, f := range j.w.Faults {
		if f.Kind == lateAnswers && f.meets(replicas, d.replica) {
			sum += f.By
		}
	}
	return sum
}

// delay is how much longer answers may take.
func (j *judge) delay(d *daemon) (sum time.Duration) {
	for _, f := range j.w.Faults {
		if !f.restores() && f.Kind != lateWatch && f.meets(replicas, d.replica) {
			sum += f.By
		}
	}
	return sum
}

// disturbed reports whether anything lay between etcd and a daemon within a time, or
// etcd was not itself.
func (j *judge) disturbed(d *daemon, from, to time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		over := f.end()
		if f.Kind == lateWatch { // what came last in it is shown then
			over += f.By
		}
		return f.Kind != killed && f.Kind != unreadable && f.meets(replicas, d.replica) && f.At <= to && over >= from
	})
}

// cutOff reports whether anything but a pause lay between etcd and a daemon within a time, or so
// shortly before that its watches may not have noticed.
func (j *judge) cutOff(d *daemon, from, to time.Duration) bool {
	unnoticed := j.w.config.Reaper.Freshness + 8*time.Second
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return f.Kind != killed && f.Kind != paused && !f.alone() && f.meets(replicas, d.replica) && f.At <= to && f.end()+unnoticed >= from
	})
}

func (j *judge) disturbedHost(host int, from, to time.Duration) bool {
	return slices.ContainsFunc(j.w.Faults, func(f fault) bool {
		return (f.blocks() || f.alarms() || f.restores() || f.Kind == latency || f.Kind == lateAnswers) && f.meets(hosts, host) && f.At <= to && f.end() >= from
	})
}

// heard reports whether the last write of a lock is late knowledge for a daemon, and when it learned of it at the
// earliest.
func (j *judge) heard(d *daemon, s *state) (late bool, learned time.Duration) {
	late, learned = s.write.at < d.started, max(s.write.at, d.started)
	for _, f := range j.w.Faults {
		from := j.takesEffect(d, f)
		stood := f.stands() && f.end()-from > j.w.config.Reaper.ClockTolerance+100*time.Millisecond
		if broke := f.Kind == refused || f.Kind == down; (stood || broke) && f.meets(replicas, d.replica) && from+precise < s.write.at && s.write.at < f.end() {
			if late = true; f.Kind != silentWatch { // where it may be listed meanwhile
				learned = max(learned, f.end())
			}
		}
		// What is late in the beginning has stalled, and what comes then looks live.
		if stall := f.By - j.shownLate(d, f.At-1); f.Kind == lateWatch && stall > j.w.config.Reaper.ClockTolerance+100*time.Millisecond && f.meets(replicas, d.replica) &&
			f.At+precise < s.write.at && s.write.at < min(f.At+stall, f.end())-precise {
			late = true
		}
	}
	return late, learned
}

// takesEffect returns when a fault does: a watch that stands is silent only once it has shown the last of what another
// fault had held back.
func (j *judge) takesEffect(d *daemon, f fault) time.Duration {
	from := f.At
	if !f.stands() {
		return from
	}
	for _, o := range j.w.Faults {
		switch {
		case o == f || o.At > f.At || !o.meets(replicas, d.replica):
		case o.Kind == lateWatch:
			from = max(from, min(o.end(), f.At)+o.By)
		case o.Kind == silentWatch && o.end() < f.end():
			from = max(from, o.end())
		}
	}
	return min(from, f.end())
}
