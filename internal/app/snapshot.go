package app

import (
	"context"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
)

// Snapshot implements metrics.Source.
func (a *App) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	return a.snapshot(ctx, a.config.Metrics.MaxLockSeries)
}

// snapshot names up to limit locks past their alert time, forced unlocks and
// skewed hosts.
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
		Probe:  a.probe.Status(),
		Leader: a.leads(),

		Certificates: a.client.Certificates(),
	}, nil
}

// missing returns why the daemon is not ready, or "".
func (a *App) missing() string {
	status := a.scanner.Status()
	if !status.Listed.IsZero() {
		return ""
	}
	words := "the first listing of " + a.config.Prefix + " is not done"
	if status.LastError != nil {
		words += ": " + lock.Clip([]byte(status.LastError.Error()), maxError)
	}
	return words
}
