package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// judge adds the verdict on a lock to what the API shows of it, and returns it.
func (v view) judge(shown *api.Lock, seen *table.View, h hold) verdict.Verdict {
	decided := v.app.reaper.Verdict(*seen)
	shown.Waiters = v.app.waiters.Count(seen.Name)
	if decided.Action != verdict.Leave {
		shown.Due = decided.Due.UTC()
	}
	if shown.Explanation = h.explain(decided); !h.blind {
		shown.Rhythm = seen.Rhythm
	}
	return decided
}

// hold is why no lock is removed now. It is the same for all locks of an answer.
type hold struct {
	// words are empty if nothing prevents a removal.
	words string
	// outage reports whether an outage is in progress, which moves every due on.
	outage bool
	// blind reports whether the daemon does not see renewals.
	blind bool
}

// holding returns the holds in force that stop removals. What others do the verdicts themselves say.
func (a *App) holding() hold {
	now, probed, overdue := time.Now(), a.probe.Status(), a.probe.Overdue()
	seen := a.scanner.Status()
	h := hold{outage: overdue || len(probed.Alarms) > 0, blind: !seen.Connected || now.Sub(seen.Progress) > a.config.Reaper.Freshness || !probed.OK || overdue}
	var words []string
	for _, h := range a.reaper.Holding() {
		if h.Hold.Kind().Stops {
			words = append(words, fmt.Sprintf("since %s: %s", verdict.Instant(now, h.Since), h.Reason))
		}
	}
	if len(words) > 0 {
		h.words = "removals on hold " + strings.Join(words, ", and ")
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

// logWaiting logs for locks past their deadline what they wait for, each again only when
// that has changed.
func (a *App) logWaiting(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for said := map[string]string{}; ; {
		select {
		case <-tick.C:
			said = a.sayWaiting(ctx, said)
		case <-ctx.Done():
			return nil
		}
	}
}

// sayWaiting returns why each lock waits that it named now or before.
func (a *App) sayWaiting(ctx context.Context, said map[string]string) map[string]string {
	const maxWaiting, maxLooked = 20, 1000 // how many locks it names at a time, of the first so many of those
	stats, err := a.table.Stats(ctx, 0)
	expired := stats.Locks[protocol.Expired]
	if err != nil || expired == 0 {
		return nil
	}
	page, err := a.table.Page(ctx, api.Query{States: []string{protocol.Expired.String()}, Limit: maxLooked})
	if err != nil {
		return nil // the table has stopped
	}
	waiting, now, h := make(map[string]string, len(page.Items)), time.Now(), a.holding()
	named := 0
	for i := range page.Items {
		it := &page.Items[i]
		if now.Add(a.ahead(it)).Sub(it.AutoUnlockAt().Time()) < lingering {
			continue
		}
		v := a.reaper.Verdict(*it)
		why := fmt.Sprint(it.Token, it.Revision, v.Action, v.Mode, v.Reason, h.words)
		if said[it.Name] == why {
			waiting[it.Name] = why
		} else if named++; named <= maxWaiting {
			waiting[it.Name] = why
			a.logger.Info(api.LogWaiting, "lock", protocol.Clip([]byte(it.Name), protocol.MaxName), "explanation", h.explain(v), "locks", expired)
		}
	}
	return waiting
}

// Snapshot implements metrics.Source.
func (a *App) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	return a.snapshot(ctx, a.config.Metrics.MaxLockSeries)
}

// snapshot includes up to limit overdue locks, forced unlocks and skewed hosts each.
func (a *App) snapshot(ctx context.Context, limit int) (metrics.Snapshot, error) {
	stats, err := a.table.Stats(ctx, limit)
	return metrics.Snapshot{
		Table:  stats,
		Scan:   a.scanner.Status(),
		Reaper: a.reaper.Stats(),
		Forced: a.reaper.Ledger().Recent(limit),
		Holds:  a.reaper.Holding(),
		Pauses: a.pauses.InForce(),
		Probe:  a.probe.Status(),
		Leader: a.leads(),
		Native: a.native.Listings(),

		Waiters:      a.waiters.Stats(limit),
		Certificates: a.client.Certificates(),
	}, err
}

// missing returns the reason why the daemon is not ready, or "".
func (a *App) missing() string {
	status := a.scanner.Status()
	if !status.Listed.IsZero() && a.pauses.Listed() {
		return ""
	}
	if !status.Listed.IsZero() {
		return a.pauses.Unseen()
	}
	reason := "the first listing of " + a.config.Prefix + " is not done"
	if status.LastError != nil {
		reason += ": " + api.ErrorText(status.LastError)
	}
	return reason
}

// Signals returns the input of the holds, from the parts of a daemon. counted reports whether the records that a brake
// counts are loaded.
func Signals(scanner *scan.Scanner, prober *probe.Probe, pauses *pause.Pauses, counted bool) verdict.Signals {
	seen, probed := scanner.Status(), prober.Status()
	unseen := pauses.Unseen() // first: it vouches for the pauses that are read after it
	if unseen == "" && !counted {
		unseen = "records of removals, which the brake counts, not loaded"
	}
	return verdict.Signals{
		ListedAt:  seen.Listed,
		History:   seen.History,
		Connected: seen.Connected,
		LastSign:  seen.Progress,
		Lost:      seen.Lost,
		Probed:    probed.OK,
		ProbeErr:  probed.Err,
		Alarms:    probed.Alarms,
		Failed:    probed.Failed,
		Alarmed:   probed.Alarmed,
		Overdue:   prober.Overdue(),
		Good:      probed.Good,
		Paused:    pauses.All(),
		Unseen:    unseen,
	}
}
