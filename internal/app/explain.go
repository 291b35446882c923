package app

import (
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// judge adds the verdict on a lock to what the API shows of it, and returns it.
func (v view) judge(shown *api.Lock, seen *table.View, h hold) verdict.Verdict {
	decided := v.app.reaper.Verdict(*seen)
	if decided.Action != verdict.Leave {
		shown.Due = decided.Due.UTC()
	}
	shown.Explanation = h.explain(decided)
	return decided
}

// hold is why no lock is removed now. It is the same for all locks of an answer.
type hold struct {
	// words are empty if nothing prevents a removal.
	words string
	// outage reports whether an outage is in progress, which moves every due on.
	outage bool
}

// holding returns the holds in force that stop removals. What others do the verdicts themselves say.
func (a *App) holding() hold {
	now, probed, overdue := time.Now(), a.probe.Status(), a.probe.Overdue()
	h := hold{outage: overdue || len(probed.Alarms) > 0}
	var words []string
	for _, h := range a.reaper.Holding() {
		if h.Hold.Kind().Stops {
			words = append(words, fmt.Sprintf("since %s: %s", verdict.Instant(now, h.Since), h.Reason))
		}
	}
	switch {
	case len(words) > 0:
		h.words = "removals on hold " + strings.Join(words, ", and ")
	case overdue && probed.Good.IsZero():
		h.words = "no removal before etcd has answered a probe"
	case overdue:
		h.words = "no removal while a probe is overdue: etcd answered none that began after " + verdict.Instant(now, probed.Good)
	}
	return h
}

// lingering is how long a lock may be due before its explanation says that removing it
// takes too long.
const lingering = 10 * time.Second

// explain returns the verdict in words, with what prevents a removal.
func (h hold) explain(v verdict.Verdict) string {
	words := v.Explanation()
	switch {
	case v.Action == verdict.Leave:
		return words
	case v.Action == verdict.Remove && h.words != "":
		return "is due; " + h.words
	case v.Action == verdict.Remove && v.Remaining < -lingering:
		return fmt.Sprintf("is due since %s and not removed yet: others are removed first, or its removal fails "+
			"(see the log and unlocker_forced_unlock_failures_total)", verdict.Instant(v.Now, v.Now.Add(v.Remaining)))
	}
	if h.words != "" {
		words += "; " + h.words
	}
	if h.outage && v.Allowance > 0 {
		words += "; it waits longer while that lasts"
	}
	return words
}
