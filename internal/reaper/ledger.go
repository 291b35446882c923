package reaper

import (
	"sync"
	"time"

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

// Removal is an entry of the ledger: a lock that was removed, by force or after its deadline. All
// strings are truncated and valid UTF-8.
type Removal struct {
	At       time.Time `json:"at"`
	Name     string    `json:"name"`
	UUID     string    `json:"uuid"`
	Hostname string    `json:"hostname"`
	Owner    string    `json:"owner"`
	// Trigger is empty if it is not known why, nor by whom, the lock was removed.
	Trigger verdict.Trigger `json:"trigger"`
	// Who and Reason are those of the record of a manual unlock.
	Who    string `json:"who"`
	Reason string `json:"reason"`
	// Revision is that of the deletion, or 0 if only a listing showed it.
	Revision int64 `json:"revision"`
	// Fields are the fields as in the log; More is the number of omitted keys.
	Fields []lockstore.Field `json:"fields"`
	More   int               `json:"more_fields,omitempty"`
	// Verdict is that of this replica; nil if it did not remove the lock.
	Verdict *verdict.Verdict `json:"verdict"`
}

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
	fields, more := a.record.Logged()
	decided := a.verdict // of the attempt nothing else is kept
	l.add(&l.forced, Removal{
		Name:     a.record.LoggedName(),
		UUID:     a.record.LoggedUUID(),
		Hostname: a.record.Hostname(),
		Owner:    a.record.Owner(),
		Trigger:  a.verdict.Trigger,
		Revision: a.result.Revision,
		Fields:   fields,
		More:     more,
		Verdict:  &decided,
	})
}

// other adds a lock that somebody else removed past its deadline.
func (l *Ledger) other(removed *protocol.Lock, revision int64) {
	l.add(&l.others, Removal{
		Name:     protocol.Clip([]byte(removed.Name), lockstore.MaxName),
		UUID:     removed.UUID(),
		Hostname: removed.Hostname(),
		Owner:    removed.Owner(),
		Revision: revision,
		More:     int(removed.Keys),
	})
}

// add adds an entry: of the present time unless its time is known and past.
func (l *Ledger) add(to *shelf, entry Removal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to.add(entry, l.now().UTC())
	to.expire(l.now().Add(-l.retention))
}

// size estimates the memory of an entry in bytes.
func (r *Removal) size() int {
	n := 256 + len(r.Name) + len(r.UUID) + len(r.Who) + len(r.Reason)
	for _, f := range r.Fields {
		n += 32 + len(f.Name) + len(f.Value)
	}
	return n
}

// Recent returns up to n of the forced unlocks, the newest first.
func (l *Ledger) Recent(n int) (recent []Removal) {
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
func (l *Ledger) Page(name string, n int) (page []Removal) {
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
		bytes -= e.size()
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
