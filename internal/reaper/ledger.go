package reaper

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// ledgerBytes is the maximum size of the forced unlocks in the ledger: some 100,000 locks of the
// usual size. Beyond it the oldest entries are dropped before the retention ends. Counters and the
// log include them. otherBytes is that of the locks that others removed: those that are released
// late all the time must not displace forced unlocks.
const (
	ledgerBytes = 32 << 20
	otherBytes  = 4 << 20
)

// Ledger has the recent removals that this replica knows of. It is safe for concurrent use.
type Ledger struct {
	retention time.Duration
	now       func() time.Time

	mu             sync.Mutex
	forced, others shelf
}

func newLedger(retention time.Duration, now func() time.Time) *Ledger {
	return &Ledger{retention: retention, now: now, forced: shelf{limit: ledgerBytes}, others: shelf{limit: otherBytes}}
}

// self adds a removal of this replica.
func (l *Ledger) self(a *attempt) {
	removed, decided := a.record.Removed(), a.verdict // of the attempt nothing else is kept
	removed.Trigger, removed.By, removed.Revision, removed.Verdict = decided.Trigger, api.Self, a.revision, &decided
	l.add(&l.forced, removed)
}

// other adds a lock that another client removed past its deadline.
func (l *Ledger) other(removed *protocol.Lock, revision int64) {
	entry := lockstore.Record{Lock: *removed}.Removed()
	entry.By, entry.Revision = api.Other, revision
	l.add(&l.others, entry)
}

// add adds an entry: of the present time unless its time is known and past.
func (l *Ledger) add(to *shelf, entry api.Forced) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to.add(entry, l.now().UTC())
	to.expire(l.now().Add(-l.retention))
}

// sizeOf estimates the memory of an entry in bytes.
func sizeOf(r *api.Forced) int {
	n := 256 + len(r.Name) + len(r.UUID) + len(r.Who) + len(r.Reason)
	for _, f := range r.Fields {
		n += 32 + len(f.Name) + len(f.Value)
	}
	return n
}

// Recent returns up to n of the forced unlocks, the newest first.
func (l *Ledger) Recent(n int) (recent []api.Forced) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced.expire(l.now().Add(-l.retention))
	for i := len(l.forced.entries) - 1; i >= 0 && len(recent) < n; i-- {
		recent = append(recent, l.forced.entries[i])
	}
	return recent
}

// shownLedgerBytes limits the text of one page: as JSON it may be six times as long, and it is
// copied several times.
const shownLedgerBytes = 4 << 20

// Page returns up to n entries for the API, the newest first: those with this name, or all if it is
// empty. It returns fewer if they are big. A name may be the truncated one of a metric.
func (l *Ledger) Page(name string, n int) (page []api.Forced) {
	name = protocol.Clip([]byte(name), lockstore.MaxName)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced.expire(l.now().Add(-l.retention))
	l.others.expire(l.now().Add(-l.retention))
	manual := l.manual()
	forced, others := l.forced.entries, l.others.entries
	for bytes := shownLedgerBytes; len(forced)+len(others) > 0 && len(page) < n && bytes > 0; {
		from := &others
		if last := len(forced) - 1; len(others) == 0 || last >= 0 && !forced[last].At.Before(others[len(others)-1].At) {
			from = &forced
		}
		e := &(*from)[len(*from)-1]
		*from = (*from)[:len(*from)-1]
		if name != "" && e.Name != name || e.Trigger == "" && manual[acquisition{e.Name, e.UUID}] {
			continue
		}
		page = append(page, *e)
		bytes -= sizeOf(e)
	}
	return page
}

type acquisition struct{ name, uuid string }

// manual returns the locks of manual unlocks, the deletions of which are not listed again.
func (l *Ledger) manual() map[acquisition]bool {
	all := make(map[acquisition]bool)
	for i := range l.forced.entries {
		if e := &l.forced.entries[i]; e.Trigger == verdict.Manual {
			all[acquisition{e.Name, e.UUID}] = true
		}
	}
	return all
}

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

// shelf has removals in the order of their time, up to a limit of their size.
type shelf struct {
	entries []api.Forced
	// bytes is the sum of the sizes of the entries.
	bytes, limit int
}

// add adds an entry of the time now, unless its own time is known and past.
func (s *shelf) add(entry api.Forced, now time.Time) {
	at := len(s.entries)
	if entry.At.IsZero() || entry.At.After(now) {
		if entry.At = now; at > 0 && now.Before(s.entries[at-1].At) {
			entry.At = s.entries[at-1].At // the wall clock stepped back
		}
	} else {
		at = s.since(entry.At)
	}
	s.entries = slices.Insert(s.entries, at, entry)
	for s.bytes += sizeOf(&entry); s.bytes > s.limit; {
		s.cut(1)
	}
}

func (s *shelf) expire(before time.Time) { s.cut(s.since(before)) }

// since returns the index of the first entry that is not before t.
func (s *shelf) since(t time.Time) int {
	n, _ := slices.BinarySearchFunc(s.entries, t, func(e api.Forced, t time.Time) int { return e.At.Compare(t) })
	return n
}

// cut drops the n oldest entries.
func (s *shelf) cut(n int) {
	for i := range s.entries[:n] {
		s.bytes -= sizeOf(&s.entries[i])
	}
	clear(s.entries[:n])
	s.entries = s.entries[n:]
}
