package reaper

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// ledgerBytes is the maximum size of the forced unlocks in the ledger: some 17,000 locks with a
// backtrace. Beyond it the oldest entries are dropped before a day is over. Counters and the
// log include them. otherBytes is that of the locks that others removed: those that are released
// late all the time must not displace forced unlocks.
const (
	ledgerBytes = 48 << 20
	otherBytes  = 4 << 20
	// ledgerTime is how long the ledger keeps a removal at least: as long as its record in etcd stays.
	ledgerTime = 24 * time.Hour
)

// Ledger has the removals of the last day that this replica knows of: what it removed, what the records of all
// replicas and of users say, and what else was deleted past its deadline. It is safe for concurrent use.
type Ledger struct {
	retention time.Duration
	replica   string
	now       func() time.Time

	mu             sync.Mutex
	forced, others shelf
}

func newLedger(retention time.Duration, now func() time.Time) *Ledger {
	known := func() map[removalID]verdict.Trigger { return make(map[removalID]verdict.Trigger) }
	return &Ledger{
		retention: retention, now: now,
		forced: shelf{limit: ledgerBytes, known: known()}, others: shelf{limit: otherBytes, known: known()},
	}
}

// self adds a removal of this replica, with what a brake counts, and returns its entry.
func (l *Ledger) self(a *attempt, counted ...api.Counted) api.Forced {
	removed, decided := a.record.Removed(), a.verdict // of the attempt nothing else is kept
	removed.Trigger, removed.By, removed.Replica = decided.Trigger, api.Self, l.replica
	removed.Revision, removed.Verdict, removed.Counted = a.revision, &decided, counted
	if a.presumed {
		removed.Trigger = verdict.Presumed
	}
	return l.add(&l.forced, removed)
}

// other adds a lock that another client removed past its deadline.
func (l *Ledger) other(removed *protocol.Lock, revision int64) {
	entry := lockstore.Record{Lock: *removed}.Removed()
	entry.By, entry.Revision = api.Other, revision
	l.add(&l.others, entry)
}

// kept is how long the ledger keeps a removal.
func (l *Ledger) kept() time.Duration { return max(ledgerTime, l.retention) }

// add adds an entry unless it is known: of the present time unless its time is known and past.
func (l *Ledger) add(to *shelf, entry api.Forced) api.Forced {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now().UTC()
	if old := now.Add(-l.kept()); entry.At.IsZero() || entry.At.After(old) {
		to.add(&entry, now)
		to.expire(old)
	}
	return entry
}

// knows reports whether a removal is listed with its trigger.
func (l *Ledger) knows(g *table.Gone) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.forced.known[idOf(&api.Forced{Name: protocol.Clip([]byte(g.Name), protocol.MaxName), Token: g.Token, Revision: g.Revision})]
	return known
}

// sizeOf estimates the memory of an entry in bytes, with its verdict and its places in a shelf.
func sizeOf(r *api.Forced) int {
	n := 420 + 40*len(r.Counted) + len(r.Name) + len(r.UUID) + len(r.Hostname) + len(r.Owner) + len(r.PID) + len(r.Who) + len(r.Reason)
	if r.Verdict != nil {
		n += 480
	}
	for _, f := range r.Fields {
		n += 64 + len(f.Value)
	}
	return n
}

// Recent returns up to n of the forced unlocks within the retention, the newest first.
func (l *Ledger) Recent(n int) (recent []api.Forced) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced.expire(l.now().Add(-l.kept()))
	since := l.now().Add(-l.retention)
	for i := len(l.forced.entries) - 1; i >= 0 && len(recent) < n && !l.forced.entries[i].At.Before(since); i-- {
		recent = append(recent, *l.forced.entries[i])
	}
	return recent
}

// shownLedgerBytes limits the text of one page: as JSON it may be six times as long, and it is
// copied several times.
const shownLedgerBytes = 4 << 20

// Page returns up to n entries for the API, the newest first: those with this name, or all if it is
// empty. It returns fewer if they are big. A name may be the truncated one of a metric.
func (l *Ledger) Page(name string, n int) (page []api.Forced) {
	name = protocol.Clip([]byte(name), protocol.MaxName)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forced.expire(l.now().Add(-l.kept()))
	l.others.expire(l.now().Add(-l.kept()))
	forced, others := l.forced.entries, l.others.entries
	for bytes := shownLedgerBytes; len(forced)+len(others) > 0 && len(page) < n && bytes > 0; {
		from := &others
		if last := len(forced) - 1; len(others) == 0 || last >= 0 && !forced[last].At.Before(others[len(others)-1].At) {
			from = &forced
		}
		e := (*from)[len(*from)-1]
		*from = (*from)[:len(*from)-1]
		if _, known := l.forced.known[idOf(e)]; name != "" && e.Name != name || e.Trigger == "" && known {
			continue
		}
		page = append(page, *e)
		bytes -= sizeOf(e)
	}
	return page
}

// removalID identifies a removal: by the token of the lock, and of an orphan by the revision of the deletion.
type removalID struct {
	name            string
	token, revision int64
}

func idOf(f *api.Forced) removalID {
	if f.Token != 0 {
		return removalID{name: f.Name, token: f.Token}
	}
	return removalID{name: f.Name, revision: f.Revision}
}

// Recorded adds what a record in etcd says of a removal to the ledger, and to what a brake counts. A manual unlock is
// also counted and, if set, logged, unless the record is from before the start of this replica, which may have done so in
// its life before. It reports whether a count ended, so that a lock which a brake kept may be removable.
func (r *Reaper) Recorded(ctx context.Context, removed api.Forced, before, logged bool) (ended bool) {
	const plausible = time.Minute // how far the time of a record may be from when it was seen
	manual, when := removed.Trigger == verdict.Manual, removed.At
	if ended = r.learn(&removed); removed.Trigger == verdict.Ended {
		return ended // nothing was removed
	}
	if off := r.Now().Sub(when).Abs(); manual && !before && off > plausible {
		removed.At = time.Time{} // when it was seen: the clock of a user's host is anything
	}
	r.ledger.add(&r.ledger.forced, removed)
	if !manual || before {
		return ended
	}
	if logged {
		line := slog.NewRecord(time.Now(), slog.LevelInfo, api.LogUnlocked, 0)
		line.Add("lock", removed.Name, "uuid", removed.UUID, "who", removed.Who, "reason", removed.Reason, "when", when,
			"revision", removed.Revision, "record", lockstore.LogValue(removed.Fields, removed.MoreFields))
		// The line comes first, as that of a removal: whoever sees the count finds it.
		r.journal.conclude(ctx, line) // which keeps it if it cannot be written
	}
	r.tally.update(func(s *Stats) { s.Removed[verdict.Manual]++ })
	return ended
}

// shelf has removals, each once, up to a limit of their size.
type shelf struct {
	// entries are in the order of their time.
	entries []*api.Forced
	// known has the triggers of the entries.
	known map[removalID]verdict.Trigger
	// bytes is the sum of the sizes of the entries.
	bytes, limit int
}

// add adds an entry of the time now, unless its own time is known and past. What was presumed is replaced, and by what
// this replica removed also what a record says, which any client may have written.
func (s *shelf) add(entry *api.Forced, now time.Time) {
	var last time.Time
	if n := len(s.entries); n > 0 {
		last = s.entries[n-1].At
	}
	if entry.At.IsZero() || entry.At.After(now) {
		if entry.At = now; now.Before(last) {
			entry.At = last // the wall clock stepped back
		}
	}
	id := idOf(entry)
	switch trigger, known := s.known[id]; {
	case known && (entry.Trigger == verdict.Presumed || trigger != verdict.Presumed && entry.By != api.Self):
		return
	case known:
		at := slices.IndexFunc(s.entries, func(e *api.Forced) bool { return idOf(e) == id })
		s.bytes -= sizeOf(s.entries[at])
		s.entries = slices.Delete(s.entries, at, at+1)
	}
	s.known[id] = entry.Trigger
	// Not always the last: the records of a first listing come in the order of their keys.
	s.entries = slices.Insert(s.entries, s.before(entry.At.Add(1)), entry)
	for s.bytes += sizeOf(entry); s.bytes > s.limit; {
		s.cut(1)
	}
}

// before returns how many entries are older than a time.
func (s *shelf) before(t time.Time) int {
	n, _ := slices.BinarySearchFunc(s.entries, t, func(e *api.Forced, t time.Time) int { return e.At.Compare(t) })
	return n
}

// expire drops what is older than a time.
func (s *shelf) expire(t time.Time) { s.cut(s.before(t)) }

func (s *shelf) cut(n int) {
	for _, e := range s.entries[:n] {
		s.bytes -= sizeOf(e)
		delete(s.known, idOf(e))
	}
	clear(s.entries[:n])
	s.entries = s.entries[n:]
}
