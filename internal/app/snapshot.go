package app

import (
	"context"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Snapshot implements metrics.Source.
func (a *App) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	return a.snapshot(ctx, a.config.Metrics.MaxLockSeries)
}

// snapshot includes up to limit overdue locks, forced unlocks and skewed hosts each.
func (a *App) snapshot(ctx context.Context, limit int) (metrics.Snapshot, error) {
	stats, err := a.table.Stats(ctx, limit)
	if err != nil {
		return metrics.Snapshot{}, err
	}
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

		Certificates: a.client.Certificates(),
	}, nil
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
		Paused:    pauses.All(),
		Unseen:    unseen,
	}
}
