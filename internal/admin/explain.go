package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Explain adds to a lock what a daemon says about it: its explanation, its due, its verdict,
// and its state according to the clock of its holder. On error the lock is as it was.
func (d *Detail) Explain(ctx context.Context, from client.Daemon) error {
	seen, err := from.Lock(ctx, d.Name)
	switch {
	case err != nil:
		return ofDaemon(from, err)
	case seen == nil:
		return ofDaemon(from, errors.New("sees no such lock: it was removed meanwhile, or the daemon watches another prefix or another etcd"))
	case !sameLock(&d.Lock, &seen.Lock):
		return ofDaemon(from, errors.New("sees another acquisition of the lock: it was taken again meanwhile, or the daemon watches another etcd"))
	}
	d.ExplainedBy, d.Paused = from.URL, nil // the explanation has the pauses
	d.Explanation, d.Due, d.Verdict = seen.Explanation, seen.Due, seen.Verdict
	d.State, d.ClockOffset, d.Rhythm = seen.State, seen.ClockOffset, seen.Rhythm
	if words, dated := datedOutlook(d.Lock, "the daemon"); dated {
		d.Outlook = words
	}
	return nil
}

func sameLock(a, b *api.Lock) bool { return a.Name == b.Name && a.Token == b.Token && a.UUID == b.UUID }

func ofDaemon(d client.Daemon, err error) error {
	return fmt.Errorf("no explanation: %s %w", d.URL, err)
}

// Limits of the pages that a listing is explained with. A daemon reads all its locks for each.
const (
	explainedPage  = 1000
	explainedPages = 10
)

// Explain adds to the locks what a daemon says about them, beginning with those that need a person. Of the held ones,
// whose removal depends on their holders alone, it may leave out some. On error the locks explained before it stay so.
// Observe must have been called.
func (l *Listing) Explain(ctx context.Context, from client.Daemon) (err error) {
	l.explained, err = seenBy(ctx, from, api.Query{ByUrgency: true, Limit: explainedPage})
	return err
}

// OnlySilent makes the filter select only locks whose holders are silent, as a daemon has observed.
func (f *Filter) OnlySilent(ctx context.Context, from client.Daemon) (err error) {
	f.silent, err = seenBy(ctx, from, api.Query{Silent: true, Limit: explainedPage})
	return err
}

// seenBy returns the locks that a query selects, by their names, as a daemon sees them. It leaves out only held ones that
// it was not asked for by their silence.
func seenBy(ctx context.Context, from client.Daemon, q api.Query) (map[string]api.Lock, error) {
	seen, last := make(map[string]api.Lock), ""
	for range explainedPages {
		page, err := from.Locks(ctx, q)
		if err != nil {
			return seen, ofDaemon(from, err)
		}
		for _, l := range page.Locks {
			seen[l.Name], last = l, l.State
		}
		if q.After = page.Next; q.After == "" {
			return seen, nil
		}
	}
	if last == protocol.Held.String() && !q.Silent {
		return seen, nil
	}
	return seen, ofDaemon(from, fmt.Errorf("has more than %d such locks: only the first are explained", explainedPages*explainedPage))
}

// explain adds what a daemon said about a lock.
func (l *Listing) explain(k api.Lock) api.Lock {
	if seen, found := l.explained[k.Name]; found && sameLock(&k, &seen) {
		k.Explanation, k.Due, k.State, k.ClockOffset = seen.Explanation, seen.Due, seen.State, seen.ClockOffset
		k.Rhythm = seen.Rhythm
	}
	return k
}

// outlook explains the state of a lock, as far as that follows from the lock alone.
func outlook(l *protocol.Lock, d Detail) []string {
	switch l.State(protocol.TimestampOf(d.At)) {
	case protocol.Malformed:
		return []string{neverRemoved + ": " + l.Fault() + "."}
	case protocol.Undated:
		return []string{neverRemoved + ": there is no auto_unlock_at."}
	case protocol.Orphaned:
		return []string{"There is no uuid: nobody holds it. Its fields are left over, for example from a renewal after the unlock."}
	}
	words, _ := datedOutlook(d.Lock, "this host")
	return words
}

// datedOutlook explains a state according to a clock, and reports whether it depends on one.
func datedOutlook(l api.Lock, clock string) (words []string, dated bool) {
	by := "According to the clock of " + clock + ","
	if l.ClockOffset != 0 {
		by = "According to the clock of its holder, which is " + terminal.Clock(l.ClockOffset) + ","
	}
	switch {
	case l.State == protocol.Overdue.String():
		return []string{by + " it is past its alert_at."}, true
	case l.State == protocol.Expired.String():
		return []string{by + " it is past its auto_unlock_at."}, true
	case l.State != protocol.Held.String():
		return nil, false
	case l.ClockOffset != 0:
		return []string{by + " it is neither overdue nor expired."}, true
	}
	return nil, true
}

const neverRemoved = "It is never removed automatically"
