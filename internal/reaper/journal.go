package reaper

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// journal writes the log lines about removals. An outcome that cannot be written is kept until it
// can be, and no removal is announced before.
type journal struct {
	handler slog.Handler
	mu      sync.Mutex
	kept    []slog.Record
}

const (
	// maxKept bounds the outcomes that are kept. What is sent without an outcome is much less.
	maxKept = 10_000
	// journalRetry is how often they are tried again.
	journalRetry = time.Second
)

// announce writes the line before a removal, or returns an error.
func (j *journal) announce(ctx context.Context, r slog.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.flush(ctx); err != nil {
		return err
	}
	return j.handler.Handle(ctx, r)
}

// conclude writes an outcome, or keeps it. It reports whether it was written.
func (j *journal) conclude(ctx context.Context, r slog.Record) bool {
	if !j.handler.Enabled(ctx, r.Level) {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.flush(ctx) == nil && j.handler.Handle(ctx, r) == nil {
		return true
	}
	if len(j.kept) < maxKept {
		j.kept = append(j.kept, r)
	}
	return false
}

// flush writes what was kept. The caller holds the mutex.
func (j *journal) flush(ctx context.Context) error {
	for len(j.kept) > 0 {
		if err := j.handler.Handle(ctx, j.kept[0]); err != nil {
			return err
		}
		j.kept = j.kept[1:]
	}
	return nil
}

// run tries to write what was kept, until ctx is done.
func (j *journal) run(ctx context.Context) error {
	return every(ctx, journalRetry, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		_ = j.flush(ctx) // the next call tries again
	})
}
