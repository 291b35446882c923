package reaper

import (
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
	removed.Trigger, removed.By, removed.Revision, removed.Verdict = decided.Trigger, api.Self, a.result.Revision, &decided
	l.add(&l.forced, removed)
}

// other adds a lock that another client removed past its deadline.
func (l *Ledger) other(removed *protocol.Lock, revision int64) {
	l.add(&l.others, api.Forced{
		Name:       protocol.Clip([]byte(removed.Name), lockstore.MaxName),
		UUID:       removed.UUID(),
		Hostname:   removed.Hostname(),
		Owner:      removed.Owner(),
		By:         api.Other,
		Revision:   revision,
		Fields:     []api.Field{},
		MoreFields: int(removed.Keys),
	})
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
