package reaper

import (
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// ledgerBytes is the maximum size of the text in the ledger: some 100,000 locks of the usual size.
// Beyond it the oldest entries are dropped before the retention ends. Counters and the log
// include them.
const ledgerBytes = 32 << 20

// Removal is an entry of the ledger: a lock that was force-unlocked, its fields, and the verdict.
// All strings are truncated and valid UTF-8.
type Removal struct {
	At       time.Time `json:"at"`
	Name     string    `json:"name"`
	UUID     string    `json:"uuid"`
	Hostname string    `json:"hostname"`
	Owner    string    `json:"owner"`
	Revision int64     `json:"revision"`
	// Fields are the fields as in the log; More is the number of omitted keys.
	Fields  []lockstore.Field `json:"fields"`
	More    int               `json:"more_fields,omitempty"`
	Verdict verdict.Verdict   `json:"verdict"`
}

// Ledger has the recent forced unlocks of this replica. It is safe for concurrent use.
type Ledger struct {
	retention time.Duration
	now       func() time.Time

	mu sync.Mutex
	// entries are in the order of their time; bytes is the sum of their sizes.
	entries []Removal
	bytes   int
}

func newLedger(retention time.Duration, now func() time.Time) *Ledger {
	return &Ledger{retention: retention, now: now}
}

func (l *Ledger) add(a *attempt) {
	fields, more := a.record.Logged()
	entry := Removal{
		Name:     a.record.LoggedName(),
		UUID:     a.record.LoggedUUID(),
		Hostname: a.record.Hostname(),
		Owner:    a.record.Owner(),
		Revision: a.result.Revision,
		Fields:   fields,
		More:     more,
		Verdict:  a.verdict,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.At = l.now().UTC()
	if n := len(l.entries); n > 0 && entry.At.Before(l.entries[n-1].At) {
		entry.At = l.entries[n-1].At // the wall clock stepped back
	}
	l.expire()
	l.entries = append(l.entries, entry)
	l.bytes += entry.size()
	for l.bytes > ledgerBytes {
		l.cut(1)
	}
}

// size estimates the memory of an entry in bytes.
func (r *Removal) size() int {
	n := 256 + len(r.Name) + len(r.UUID)
	for _, f := range r.Fields {
		n += 32 + len(f.Name) + len(f.Value)
	}
	return n
}

// Recent returns up to n entries, the newest first.
func (l *Ledger) Recent(n int) []Removal { return l.recent("", n, ledgerBytes) }

// shownLedgerBytes limits the text of one page: as JSON it may be six times as long, and it is
// copied several times.
const shownLedgerBytes = 4 << 20

// Page is Recent for the API: the entries with this name, or all if it is empty. It returns fewer
// if they are big. A name may be the truncated one of a metric.
func (l *Ledger) Page(name string, n int) []Removal {
	return l.recent(lock.Clip([]byte(name), lockstore.MaxName), n, shownLedgerBytes)
}

func (l *Ledger) recent(name string, n, bytes int) (recent []Removal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire()
	for i := len(l.entries) - 1; i >= 0 && len(recent) < n && bytes > 0; i-- {
		if e := &l.entries[i]; name == "" || e.Name == name {
			recent = append(recent, *e)
			bytes -= e.size()
		}
	}
	return recent
}

func (l *Ledger) expire() {
	oldest := l.now().Add(-l.retention)
	n, _ := slices.BinarySearchFunc(l.entries, oldest, func(e Removal, t time.Time) int { return e.At.Compare(t) })
	l.cut(n)
}

// cut drops the n oldest entries.
func (l *Ledger) cut(n int) {
	for i := range l.entries[:n] {
		l.bytes -= l.entries[i].size()
	}
	clear(l.entries[:n])
	l.entries = l.entries[n:]
}
