package reaper

import (
	"context"
	"log/slog"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Manual adds a manual unlock, of which etcd has a record, to the ledger. It also counts and logs
// it, unless the record is from before the start of this replica, which may have done so in its
// life before.
func (r *Reaper) Manual(ctx context.Context, removed api.Forced, before bool) {
	when := removed.At
	if !before {
		removed.At = time.Time{} // when it was seen, according to the clock of this host
	}
	r.ledger.add(&r.ledger.forced, removed)
	if before {
		return
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, api.LogUnlocked, 0)
	line.Add("lock", removed.Name, "uuid", removed.UUID, "who", removed.Who, "reason", removed.Reason, "when", when,
		"revision", removed.Revision, "record", lockstore.LogValue(removed.Fields, removed.MoreFields))
	// The line comes first, as that of a removal: whoever sees the count finds it.
	r.journal.conclude(ctx, line) // which keeps it if it cannot be written
	r.tally.update(func(s *Stats) { s.Removed[verdict.Manual]++ })
}
