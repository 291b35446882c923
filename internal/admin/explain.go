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
	d.State, d.ClockOffset = seen.State, seen.ClockOffset
	if words, dated := datedOutlook(d.Lock, "the daemon"); dated {
		d.Outlook = words
	}
	return nil
}

func sameLock(a, b *api.Lock) bool { return a.Name == b.Name && a.Token == b.Token && a.UUID == b.UUID }

func ofDaemon(d client.Daemon, err error) error {
	return fmt.Errorf("no explanation: %s %w", d.URL, err)
}

// Limits of the pages that a listing is explained with. A daemon reads all its locks for
// each.
const (
	explainedPage  = 1000
	explainedPages = 10
)

// Explain adds to the locks what a daemon says about them. It asks about all but the held
// ones, whose removal depends on their holders alone. On error the locks explained before
// it stay so.
func (l *Listing) Explain(ctx context.Context, from client.Daemon) error {
	status, err := from.Status(ctx)
	if err != nil {
		return ofDaemon(from, err)
	}
	if status.Prefix != l.Prefix {
		return ofDaemon(from, fmt.Errorf("watches %s, not %s", status.Prefix, l.Prefix))
	}
	var states []string
	for _, s := range api.States() {
		if s != protocol.Held.String() {
			states = append(states, s)
		}
	}
	l.explained = make(map[string]api.Lock)
	for after, pages := "", 0; pages < explainedPages; pages++ {
		page, err := from.Locks(ctx, api.Query{States: states, Limit: explainedPage, After: after})
		if err != nil {
			return ofDaemon(from, err)
		}
		for _, seen := range page.Locks {
			l.explained[seen.Name] = seen
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
	return ofDaemon(from, fmt.Errorf("has more than %d locks to explain: only the first by name are", explainedPages*explainedPage))
}

// Explained reports whether a daemon was asked for explanations.
func (l *Listing) Explained() bool { return l.explained != nil }

// explain adds what a daemon said about a lock.
func (l *Listing) explain(k api.Lock) api.Lock {
	if seen, found := l.explained[k.Name]; found && sameLock(&k, &seen) {
		k.Explanation, k.Due, k.State, k.ClockOffset = seen.Explanation, seen.Due, seen.State, seen.ClockOffset
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
