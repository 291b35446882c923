package app

import (
	"context"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan/table"
)

// source gives the reaper the table, in the reaper's own words: the two rooms
// do not know each other.
type source struct {
	table *table.Table
	gone  chan []reaper.Gone
}

func newSource(t *table.Table) *source {
	return &source{table: t, gone: make(chan []reaper.Gone)}
}

// Take implements reaper.Source.
func (s *source) Take(ctx context.Context, most int) ([]reaper.Candidate, reaper.Pressure, error) {
	batch, err := s.table.Take(ctx, most)
	at := time.Now()
	candidates := make([]reaper.Candidate, len(batch.Locks))
	for i, t := range batch.Locks {
		candidates[i] = reaper.Candidate{Lock: t.Lock, Sight: t.Sight, At: at, Since: t.Since, Attempts: t.Attempts}
	}
	return candidates, reaper.Pressure(batch.Pressure), err
}

// Pressure implements reaper.Source.
func (s *source) Pressure(ctx context.Context) (reaper.Pressure, error) {
	p, err := s.table.Pressure(ctx)
	return reaper.Pressure(p), err
}

// Postpone implements reaper.Source.
func (s *source) Postpone(ctx context.Context, name string, token int64, delay time.Duration) error {
	return s.table.Postpone(ctx, name, token, delay)
}

// Gone implements reaper.Source.
func (s *source) Gone() <-chan []reaper.Gone { return s.gone }

// run passes on what vanished.
func (s *source) run(ctx context.Context) error {
	for {
		select {
		case gone := <-s.table.Gone():
			passed := make([]reaper.Gone, len(gone))
			for i, g := range gone {
				passed[i] = reaper.Gone(g)
			}
			select {
			case s.gone <- passed:
			case <-ctx.Done():
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Snapshot implements metrics.Source.
func (a *App) Snapshot(ctx context.Context) (metrics.Snapshot, error) {
	return a.snapshot(ctx, a.config.Metrics.MaxLockSeries)
}

// snapshot names at most most locks past their alert time, forced unlocks and
// skewed hosts.
func (a *App) snapshot(ctx context.Context, most int) (metrics.Snapshot, error) {
	stats, err := a.table.Stats(ctx, most)
	if err != nil {
		return metrics.Snapshot{}, err
	}
	return metrics.Snapshot{
		Table:  stats,
		Scan:   a.scanner.Status(),
		Reaper: a.reaper.Stats(),
		Forced: a.reaper.Ledger().Recent(most),
		Holds:  a.reaper.Holding(),
		Probe:  a.probe.Status(),
		Leader: a.leads(),

		Certificates: a.client.Certificates(),
	}, nil
}

// missing tells what the daemon lacks to be ready, or "".
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
