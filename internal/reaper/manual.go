package reaper

import (
	"context"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/audit"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Manual adds a manual unlock, of which etcd has a record that was written at a revision, to the
// ledger. It also counts and logs it, unless the record is from before the start of this replica,
// which may have done so in its life before.
func (r *Reaper) Manual(ctx context.Context, rec audit.Record, revision int64, before bool) {
	entry := Removal{
		Name: rec.Name, UUID: rec.UUID, Hostname: rec.Hostname, Owner: rec.Owner, Trigger: verdict.Manual,
		Who: rec.Who, Reason: rec.Reason, Revision: revision, Fields: rec.Fields, More: rec.More,
	}
	if before {
		entry.At = rec.When.UTC()
	}
	r.ledger.add(&r.ledger.forced, entry)
	if before {
		return
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, api.LogUnlocked, 0)
	line.Add("lock", rec.Name, "uuid", rec.UUID, "who", rec.Who, "reason", rec.Reason, "when", rec.When,
		"revision", revision, "record", rec)
	// The line comes first, as that of a removal: whoever sees the count finds it.
	r.journal.conclude(ctx, line) // which keeps it if it cannot be written
	r.tally.update(func(s *Stats) { s.Removed[verdict.Manual]++ })
}
