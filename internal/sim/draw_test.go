package sim

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"pgregory.net/rapid"
)

// even draws a number below n, each as often: rapid itself draws small ones far more often, and with them all that
// happens happens in the first seconds. What is counted is drawn by rapid, so that it removes what is not needed.
func even(rt *rapid.T, name string, n int) int {
	sum := fnv.New64a()
	_, _ = sum.Write(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(rt, name))
	return int(sum.Sum64() % uint64(n))
}

// seconds draws a time in twentieths of a second.
func seconds(rt *rapid.T, name string, least, most int) time.Duration {
	return time.Duration(20*least+even(rt, name, 20*(most-least)+1)) * time.Second / 20
}

func chance(rt *rapid.T, name string, percent int) bool { return even(rt, name, 100) < percent }

func oneOf[T any](rt *rapid.T, name string, values ...T) T {
	return values[even(rt, name, len(values))]
}

// What a daemon does by itself at an interval, or waits for.
const (
	settle    = 15 * time.Second
	grace     = 2 * time.Second
	freshness = 10 * time.Second
	orphaned  = time.Minute // orphan_grace
)

// odds are by how many percent what is drawn happens. They differ between histories (swarm testing): what is rare is
// not rare in some of them, nor together with what else is not.
type odds struct {
	noLockedAt, noAliveAt, renews, fixed, long, hostClock, clock, note, blind int
	names                                                                     []string
}

func drawOdds(rt *rapid.T) odds {
	drawn := func(name string, usual int) int {
		return oneOf(rt, "odds of "+name, usual, usual, usual, usual, usual, 0, 90)
	}
	return odds{
		drawn("no locked_at", 20), drawn("no alive_at", 30), drawn("stamps of renewals", 25), drawn("fixed", 8), drawn("long", 15), drawn("clock of a host", 40), drawn("clock", 35), drawn("notes", 20), drawn("blind", 40),
		oneOf(rt, "names", []string{"a", "a/b", "b", "c", "d"}, []string{"a", "a/b", "b", "c", "d"}, []string{"a", "a", "a/b", "a/z"}),
	}
}

// draw makes a random history: faults in its first minute, and time after them in which the dead must go. What happens
// by chance in the same instant rarely does: most faults begin or end near an instant that matters.
func draw(rt *rapid.T, kinds []kind) (h history) {
	h.Replicas = oneOf(rt, "replicas", 1, 1, 1, 2, 2, 3)
	odds := drawOdds(rt)
	if chance(rt, "few kinds", 40) {
		few := make([]kind, 1+even(rt, "kinds", 3))
		for i := range few {
			few[i] = oneOf(rt, "kind", kinds...)
		}
		kinds = few
	}
	if chance(rt, "storm", 3) {
		h.Holders = drawStorm(rt)
	} else {
		for range rapid.IntRange(1, 6).Draw(rt, "holders") {
			h.Holders = append(h.Holders, drawHolder(rt, odds))
		}
	}
	last := 40 * time.Second
	for _, o := range h.Holders {
		if o.Blind {
			last = max(last, o.Releases+orphaned+40*time.Second)
		}
	}
	if len(h.Holders) > 6 {
		last = h.Holders[len(h.Holders)-1].Dies // which all of them are for
	}
	add := func(f fault) {
		if !slices.ContainsFunc(h.Faults, f.excludes) {
			h.Faults = append(h.Faults, f)
			last = max(last, f.end())
		}
	}
	for range oneOf(rt, "faults", 0, 1, 1, 1, 2, 2, 3, 4) {
		f := drawFault(rt, h.Replicas, kinds)
		if chance(rt, "near", 50) {
			f = drawAt(rt, f, oneOf(rt, "instant", h.instants()...))
		} else if chance(rt, "request", 60) {
			f = drawOn(rt, h.Replicas, h.instants())
		}
		add(f)
	}
	if chance(rt, "near", 40) { // some around the same instant
		at := oneOf(rt, "instant", h.instants()...)
		for range rapid.IntRange(1, 3).Draw(rt, "faults near") {
			f := drawAt(rt, drawFault(rt, h.Replicas, kinds), at)
			add(f)
			if f.blocks() && f.Who == everyone && f.On == "" && chance(rt, "hosts too", 50) { // holders lose time that daemons do not see
				add(fault{Kind: refused, Who: hosts, At: max(0, f.At-time.Second), For: f.For + time.Second})
			}
		}
	}
	if chance(rt, "busy", 30) { // clients whose locks are being removed
		for range rapid.IntRange(1, 4).Draw(rt, "acts") {
			f := drawFault(rt, h.Replicas, []kind{renewed, released, retaken, overwritten, noted, noted})
			f.On, f.At, f.Again = oneOf(rt, "request", atRemoval, atRemoval, atRead), time.Second, true
			f.Waits, f.Seen = oneOf(rt, "waits", 0, 0, 60*time.Millisecond, 1200*time.Millisecond), chance(rt, "seen", 85) // or the request may be first
			add(f)
		}
	}
	if chance(rt, "late watch", 12) { // all the time, which no progress notice shows
		add(fault{Kind: lateWatch, Who: replicas, At: seconds(rt, "at", 1, 20), For: time.Minute, By: oneOf(rt, "by", 1900*time.Millisecond, 8*time.Second, 8*time.Second)})
	}
	if chance(rt, "into a due", 15) { // that no probe of an interval shows before
		o := oneOf(rt, "whose", h.Holders...)
		due := o.last() + o.TTL + grace + o.TTL/2000
		if f := (fault{Kind: oneOf(rt, "fault", slowDisk, noSpace), Who: everyone, At: max(time.Millisecond, due-near(rt, 700*time.Millisecond)), For: seconds(rt, "for", 1, 8)}); due < 2*time.Minute {
			add(f)
		}
	}
	for range h.Replicas {
		h.Clocks = append(h.Clocks, drawClock(rt, odds.clock, h.instants()))
	}
	if chance(rt, "rate", 10) {
		h.Rate = oneOf(rt, "removals per second", 0.04, 0.2, 1)
	}
	if chance(rt, "resync", 25) {
		h.Resync = oneOf(rt, "resync", 2*time.Second, 5*time.Second, 13*time.Second)
	}
	after := seconds(rt, "after", 25, 60)
	if chance(rt, "together", 8) { // two are due at once, and etcd refuses to remove the second: the first waits for that
		o := oneOf(rt, "whose", h.Holders...)
		f := drawFault(rt, h.Replicas, []kind{paused, paused, noSpace, slowDisk, latency})
		if f.Kind == paused {
			f.Of = oneOf(rt, "paused", o.Name, o.Name, "")
		}
		f.On, f.At, f.Seen, f.After = atRemoval, max(time.Millisecond, o.last()), true, chance(rt, "after", 70)
		f.Waits = oneOf(rt, "waits", 1200*time.Millisecond, 3*time.Second)
		add(f)
		o.Name = guarded
		h.Holders = append(h.Holders, o)
	}
	if chance(rt, "loses little", 8) { // a restore that takes back no more than that a lock was taken or released, which no listing shows
		o := oneOf(rt, "whose", h.Holders...)
		f := drawFault(rt, h.Replicas, []kind{rolledBack, rolledBack, rolledBack, newCluster})
		f.On, f.After, f.Seen = oneOf(rt, "request", atRevision, atCheck, atListing, atWatch, atProbe), chance(rt, "after", 60), chance(rt, "seen", 85)
		f.Waits, f.Writes = oneOf(rt, "waits", 0, 60*time.Millisecond, 1200*time.Millisecond), oneOf(rt, "writes", 3, 100)
		f.At = max(time.Millisecond, max(o.Start, o.Releases)-near(rt, 100*time.Millisecond))
		if add(f); chance(rt, "resync", 75) { // and so checks
			h.Resync = 2 * time.Second
		}
	}
	if chance(rt, "retaken", 8) { // what is left of a lock is taken as it is removed
		if i := slices.IndexFunc(h.Holders, func(o holder) bool { return o.Blind }); i >= 0 {
			add(fault{Kind: retaken, N: 3 * even(rt, "whose", 2), On: oneOf(rt, "request", atRead, atRead, atRemoval), At: h.Holders[i].Releases, Seen: true, Again: true})
		}
	}
	h.Lasts = last + after
	return h
}

// instants are those in which daemons and holders act: a lock is taken, renewed for the last time, passes its deadline
// or is due; and a fault ends, or what daemons wait for after it.
func (h history) instants() []time.Duration {
	all := []time.Duration{settle}
	for _, o := range h.Holders {
		passes := o.last() + o.TTL
		all = append(all, o.Start, o.last(), passes, passes+grace+o.TTL/2000)
		if o.Releases > 0 {
			all = append(all, o.Releases, o.Releases+orphaned)
		}
		if o.Stall > 0 {
			all = append(all, o.Stall+o.StallsFor)
		}
	}
	for _, f := range h.Faults {
		all = append(all, f.At, f.end(), f.end()+freshness, f.end()+settle)
		for _, o := range h.Holders {
			all = append(all, f.end()+o.TTL+grace)
		}
	}
	return slices.DeleteFunc(all, func(at time.Duration) bool { return at > 2*time.Minute })
}

// near draws a time around an instant: very near as often as near.
func near(rt *rapid.T, at time.Duration) time.Duration {
	span := oneOf(rt, "within", 10*time.Millisecond, 100*time.Millisecond, time.Second, time.Second, 4*time.Second)
	return max(time.Millisecond, at+time.Duration(even(rt, "from", 2001)-1000)*span/1000)
}

// drawAt lets a fault begin or end around an instant.
func drawAt(rt *rapid.T, f fault, at time.Duration) fault {
	switch oneOf(rt, "begins", "there", "there", "ends") {
	case "there":
		f.At = near(rt, at)
	case "ends":
		f.At = max(time.Millisecond, near(rt, at)-f.For)
	}
	return f
}

// drawOn draws a fault that waits for a request, from some time before an instant on.
func drawOn(rt *rapid.T, count int, instants []time.Duration) fault {
	f := drawFault(rt, count, []kind{renewed, released, retaken, retaken, overwritten, noted, noted, rolledBack, rolledBack, newCluster, bumped,
		paused, paused, noSpace, unreachable, refused, slowDisk, latency, killed, broken, tokens, compacted, silentWatch, lateWatch})
	f.On = oneOf(rt, "request", atRemoval, atRemoval, atRemoval, atRead, atRead, atProbe, atRevision, atCheck, atListing, atWatch)
	f.Waits = oneOf(rt, "waits", 0, 0, 60*time.Millisecond, 1200*time.Millisecond, 3*time.Second)
	f.Seen, f.After = chance(rt, "seen", 50), chance(rt, "after", 25)
	before := 2
	if f.restores() {
		before = oneOf(rt, "age", 2, 40) // of the backup
	} else if f.For > 0 && chance(rt, "short", 40) {
		f.For = oneOf(rt, "short", 20*time.Millisecond, 300*time.Millisecond, time.Second, 2500*time.Millisecond)
	}
	f.At = max(time.Millisecond, oneOf(rt, "instant", instants...)-seconds(rt, "before", 0, before))
	return f
}

func drawClock(rt *rapid.T, percent int, instants []time.Duration) (c clock) {
	if !chance(rt, "clock is off", percent) {
		return c
	}
	off := func(name string) time.Duration {
		return oneOf[time.Duration](rt, name, 1, -1) * oneOf(rt, name, time.Second, 1900*time.Millisecond, 1990*time.Millisecond, 2100*time.Millisecond,
			3*time.Second, 3900*time.Millisecond, 5*time.Second, 30*time.Second, 90*time.Second, 7*time.Minute, 24*time.Hour)
	}
	c.Drift = oneOf(rt, "drift", 0, 0, 100, -100, -450, -450)
	if chance(rt, "offset", 60) {
		c.Offset = off("offset")
	}
	if chance(rt, "steps", 40) {
		at := seconds(rt, "step", 5, 70)
		if len(instants) > 0 && chance(rt, "near", 50) {
			at = near(rt, oneOf(rt, "instant", instants...))
		}
		c.Steps = append(c.Steps, step{at, off("step")})
		if c.Offset != 0 && chance(rt, "corrected", 50) {
			c.Steps[0].By = -c.Offset
		} else if chance(rt, "back", 50) {
			c.Steps = append(c.Steps, step{c.Steps[0].At + seconds(rt, "back", 1, 10), -c.Steps[0].By})
		}
	}
	return c
}

func drawHolder(rt *rapid.T, odds odds) holder {
	h := holder{
		Name: oneOf(rt, "name", odds.names...), Host: rapid.IntRange(0, 1).Draw(rt, "host"),
		Start: seconds(rt, "start", 0, 40), Interval: seconds(rt, "interval", 2, 10), Retry: oneOf(rt, "retry", 20*time.Second, 5*time.Second, time.Second),
		LockedAt: !chance(rt, "no locked_at", odds.noLockedAt), AliveAt: !chance(rt, "no alive_at", odds.noAliveAt), Seconds: chance(rt, "whole seconds", 30), Clock: drawClock(rt, odds.hostClock, nil),
	}
	if chance(rt, "stamps of renewals", odds.renews) {
		for range rapid.IntRange(1, 4).Draw(rt, "renewals") {
			h.Renews += oneOf(rt, "stamps", "a", "a", "-", "-", "l")
		}
	}
	h.TTL = h.Interval*time.Duration(oneOf(rt, "renewals", 2, 3, 4)) + time.Second
	switch {
	case chance(rt, "long", odds.long):
		h.TTL = seconds(rt, "ttl", 60, 600)
	case chance(rt, "just before", 15):
		h.TTL = h.Interval + oneOf(rt, "left", 50*time.Millisecond, 500*time.Millisecond, 1500*time.Millisecond)
	}
	if chance(rt, "never renews", 15) {
		h.Interval = 0
	}
	switch oneOf(rt, "ends", "dies", "dies", "dies", "lives", "releases", "stalls") {
	case "dies":
		h.Dies = h.Start + seconds(rt, "dies", 1, 40)
	case "releases":
		h.Releases, h.Blind = h.Start+seconds(rt, "releases", 1, 40), chance(rt, "blind", odds.blind)
	case "stalls":
		h.Stall, h.StallsFor = h.Start+seconds(rt, "stall", 1, 30), seconds(rt, "stalls", 1, 40)
		if chance(rt, "until its deadline", 50) { // of the renewal before
			renewed := h.Start
			if h.Interval > 0 {
				renewed += (h.Stall - h.Start).Truncate(h.Interval)
			}
			h.StallsFor = max(time.Second, near(rt, renewed+h.TTL)-h.Stall)
		}
	}
	if chance(rt, "notes", odds.note) {
		h.Note = seconds(rt, "note", 1, 5)
	}
	h.Fixed = chance(rt, "fixed", odds.fixed)
	if chance(rt, "leased", 4) {
		h.Leased = oneOf(rt, "field", native, native, "hostname")
	}
	if chance(rt, "odd deadline", 5) {
		h.Deadline = oneOf(rt, "deadline", "none", "none", "soon", "0", "1700000000000")
	}
	return h
}

// drawStorm draws holders that die one after another, within or around the window of a storm.
func drawStorm(rt *rapid.T) (all []holder) {
	apart := seconds(rt, "apart", 1, 6)
	for i := range rapid.IntRange(10, 14).Draw(rt, "holders") {
		start := 2*time.Second + time.Duration(i)*apart
		all = append(all, holder{Name: "storm-" + strconv.Itoa(i), Start: start, TTL: 20 * time.Second, Retry: time.Second, LockedAt: true, AliveAt: true, Dies: start + time.Second})
	}
	return all
}

// excludes reports whether two faults are in no history: what a daemon saw between two restores is known to nobody,
// an etcd that is down can neither be backed up nor restored, and what starts again has another disk.
func (f fault) excludes(o fault) bool {
	replaced := func(f, o fault) bool {
		return f.restores() && o.Kind == down || (f.restores() || f.Kind == down) && o.Kind == slowDisk && (f.On+o.On != "" || f.At < o.end() && o.At < f.end()+1)
	}
	return f.restores() && o.restores() || replaced(f, o) || replaced(o, f)
}

// kinds are those of random faults, as often as they are drawn.
func kinds() []kind {
	return []kind{unreachable, unreachable, refused, unanswered, noLeader, slowDisk, slowDisk, lag, latency, lateAnswers, noSpace, noSpace, corrupt, broken, tokens, compacted, logFull,
		paused, paused, killed, killed, down, rolledBack, newCluster, bumped, silentWatch, silentWatch, lateWatch, lateWatch, renewed, released, retaken, overwritten, noted, noted}
}

func drawFault(rt *rapid.T, count int, kinds []kind) fault {
	f := fault{
		Kind: oneOf(rt, "fault", kinds...),
		At:   seconds(rt, "at", 1, 50), For: seconds(rt, "for", 1, 5),
	}
	switch { // about as long as what is waited for
	case chance(rt, "long", 40):
		f.For = seconds(rt, "for", 5, 30)
	case chance(rt, "about", 60):
		f.For = near(rt, oneOf(rt, "for", 1150*time.Millisecond, 1500*time.Millisecond, grace, 2*grace, freshness, keepAlive, settle)) + 50*time.Millisecond
	}
	f.Who = oneOf(rt, "who", everyone, everyone, replicas, replicas, hosts)
	if f.Who == replicas {
		f.N = rapid.IntRange(0, count).Draw(rt, "number")
	}
	switch f.Kind {
	case noSpace, corrupt, slowDisk, down:
		f.Who = everyone
	case paused:
		f.Who, f.Of = everyone, oneOf(rt, "paused", "", "", "a", "b", broke)
	case silentWatch, lateWatch:
		if f.Kind == lateWatch {
			f.By = oneOf(rt, "by", 500*time.Millisecond, 1900*time.Millisecond, 3*time.Second, 8*time.Second)
		}
		f.Who, f.N = replicas, rapid.IntRange(0, count).Draw(rt, "number")
	case renewed, released, retaken, overwritten, noted:
		f.For, f.N = 0, even(rt, "whose", 6)
	case killed, logFull:
		f.Who, f.N = replicas, rapid.IntRange(0, count).Draw(rt, "number")
	case lag, latency, lateAnswers:
		f.By = oneOf(rt, "by", 50*time.Millisecond, 500*time.Millisecond, 3*time.Second)
	case broken, tokens, compacted:
		f.Who, f.For = everyone, 0
	case rolledBack, newCluster, bumped:
		f.Who, f.For, f.By, f.Writes = everyone, 0, seconds(rt, "age", 0, 30), oneOf(rt, "writes", 0, 3, 100)
	}
	return f
}
