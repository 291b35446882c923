package app

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// judge adds the verdict on a lock to what the API shows of it, and returns it. onHold is
// what holding returned.
func (v view) judge(shown *api.Lock, d table.Due, onHold string) verdict.Verdict {
	decided := v.app.reaper.Verdict(d)
	if decided.Action != verdict.Leave {
		shown.Due = decided.Due.UTC()
	}
	shown.Explanation = explain(decided, onHold)
	return decided
}

// dueOf returns what the verdict on a lock in the table depends on. An orphan without a
// due was due, and postponed until it is modified.
func dueOf(it *table.Item, now time.Time) table.Due {
	d := table.Due{Lock: it.Lock, Observation: it.Observation, At: now}
	if it.Token == 0 {
		d.OrphanDue = cmp.Or(it.Due, now)
	}
	return d
}

// lingering is how long a lock may be due before its explanation says that removing it
// takes too long.
const lingering = 10 * time.Second

// explain returns the verdict in words, with the reasons why nothing is removed now.
func explain(v verdict.Verdict, onHold string) string {
	words := v.Explanation()
	switch {
	case v.Action == verdict.Leave:
		return words
	case onHold != "" && v.Action == verdict.Remove:
		return "is due; " + onHold
	case onHold != "":
		return words + "; " + onHold
	case v.Action == verdict.Remove && v.Remaining < -lingering:
		return fmt.Sprintf("is due since %s and not removed yet: others are removed first, or its removal fails "+
			"(see the log and unlocker_forced_unlock_failures_total)", instant(v.Now, v.Now.Add(v.Remaining)))
	}
	return words
}

// holding returns in words why no lock is removed now, "" if nothing prevents it. The
// verdicts themselves say that the mode is dry-run.
func (a *App) holding() string {
	now := time.Now()
	var words []string
	holds := a.reaper.Holding()
	for _, h := range verdict.AllHolds() {
		if hold, held := holds[h]; held && h != verdict.HoldDryRun {
			words = append(words, fmt.Sprintf("since %s: %s", instant(now, hold.Since), hold.Reason))
		}
	}
	switch {
	case len(words) > 0:
		return "removals on hold " + strings.Join(words, ", and ")
	case a.probe.Overdue():
		return "no removal while a probe is overdue: " + unanswered(now, a.probe.Status().Good)
	}
	return ""
}

func unanswered(now, good time.Time) string {
	if good.IsZero() {
		return "etcd has answered none yet"
	}
	return "etcd answered none that began after " + instant(now, good)
}

// instant formats the time of day in UTC, with the date unless it is close to now.
func instant(now, at time.Time) string {
	if now.Sub(at).Abs() > 12*time.Hour {
		return at.UTC().Format("2006-01-02 15:04:05")
	}
	return at.UTC().Format("15:04:05")
}
