package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// tell implements event: it tells in what the metrics differ from the last ones.
func (s *sample) tell(n *narrator) {
	prev := n.last
	n.last = s
	n.holding(prev.holds, s.holds)
	for _, name := range slices.Sorted(maps.Keys(s.overdue)) {
		n.overdue(name, s)
	}
	for _, name := range slices.Sorted(maps.Keys(prev.overdue)) {
		if _, still := s.overdue[name]; !still {
			n.noLongerOverdue(name, s)
		}
	}
	if troubled(s.states) != troubled(prev.states) {
		n.page.say("metrics", "unlocker_locks now: "+counts(s.states), faint)
	}
	if s.forced != prev.forced {
		n.page.say("metrics", fmt.Sprintf("unlocker_forced_unlocks_total went from %v to %v", prev.forced, s.forced), faint)
	}
	if s.removed[api] && s.forced > 0 {
		n.saw(apiCounted)
	}
	n.lookAtWarmup(s)
}

func (n *narrator) overdue(name string, s *sample) {
	if name == nightly {
		n.lookAtNightly(s)
		return
	}
	o := s.overdue[name]
	left := o.unlockAt.Sub(s.at)
	if left > 0 && !n.late[name] {
		n.late[name] = true
		n.page.say("metrics", fmt.Sprintf("%s is OVERDUE: held by %s of %s, unlock in %.1f s",
			name, or(o.host), or(o.owner), left.Seconds()), warn)
	}
	if left <= 0 && s.states["expired"] > 0 && !n.expired[name] {
		n.expired[name] = true
		n.page.say("metrics", fmt.Sprintf("%s has EXPIRED: %s did not renew it; the grace is %s", name, or(o.host), secs(n.places.grace)), warn)
	}
	switch {
	case name == monthly && o.host == overruns:
		n.saw(monthlyOverdue)
	case name == invoices:
		n.spoil(invoices + " was overdue")
	}
}

func (n *narrator) noLongerOverdue(name string, s *sample) {
	delete(n.late, name)
	delete(n.expired, name)
	if l := n.locks[name]; l == nil || len(l.fields) == 0 || s.removed[name] {
		return
	}
	n.page.say("metrics", name+" is no longer overdue", good)
	if name == monthly && s.states["held"] > 0 {
		n.saw(monthlyHeldAgain)
	}
}

// lookAtWarmup tells of the lock in milliseconds once another would be gone.
func (n *narrator) lookAtWarmup(s *sample) {
	w := n.locks[warmup]
	if w == nil || n.facts[warmupLeft] || s.states["malformed"] == 0 {
		return
	}
	value := w.fields[lock.FieldAutoUnlockAt.String()]
	if _, err := lock.ParseTimestamp([]byte(value)); err != nil && !n.facts[warmupCounted] {
		n.page.say("etcd", fmt.Sprintf("%s is to be unlocked at %s, %v: left to people", warmup, value, err), warn)
		n.saw(warmupCounted)
	}
	meant := fromMilliseconds(value)
	if past := s.at.Sub(meant.Add(n.places.grace)); !meant.IsZero() && past > 2*time.Second && len(w.fields) == 9 {
		n.page.say("etcd", fmt.Sprintf("%s was meant to be due %.1f s ago; all its %d keys are still there",
			warmup, past.Seconds(), len(w.fields)), warn)
		n.saw(warmupLeft)
	}
}

// holding tells when holds begin and end.
func (n *narrator) holding(before, now []string) {
	switch {
	case slices.Equal(before, now):
	case len(now) == 0:
		n.page.say("metrics", "unlocker_reaper_hold: none any more", faint)
	default:
		n.page.say("metrics", "unlocker_reaper_hold: "+strings.Join(now, ", ")+", nothing is removed by force yet", faint)
	}
}

// lookAtNightly tells of the lock whose owner's clock is behind.
func (n *narrator) lookAtNightly(s *sample) {
	offset, known := s.offsets[lags]
	l := n.locks[nightly]
	switch {
	case known && !n.facts[nightlyMeasured]:
		n.page.say("metrics", fmt.Sprintf("unlocker_host_clock_offset_seconds of %s is %.0f: %s counts as expired, but is not due",
			lags, offset, nightly), warn)
		n.saw(nightlyMeasured)
	case known && l != nil && l.renewals >= 8 && len(s.holds) == 0 && !n.facts[nightlyLeft]:
		n.page.say("etcd", fmt.Sprintf("%s is %s past its deadline by our clock, but its owner lives and renewed it %d times: it stays",
			nightly, minutes(s.at.Sub(l.deadline())), l.renewals), good)
		n.saw(nightlyLeft)
	}
}

// fromMilliseconds reads what cache-5 meant.
func fromMilliseconds(value string) time.Time {
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// troubled is what of the states is worth a line when it changes.
func troubled(states map[string]float64) string {
	others := maps.Clone(states)
	delete(others, "held")
	return counts(others)
}

// counts lists the states in which there are locks.
func counts(states map[string]float64) string {
	var parts []string
	for s := range lock.NumStates {
		if v := states[s.String()]; v != 0 {
			parts = append(parts, s.String()+" "+strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
