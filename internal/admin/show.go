package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/history"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Detail is one lock with all its fields.
type Detail struct {
	api.LockDetail
	// At is the time at which the state is evaluated.
	At time.Time
	// Outlook are sentences about the state of the lock and what is wrong with it.
	Outlook []string
	// ExplainedBy is the URL of the daemon that gave the explanation.
	ExplainedBy string
	// Paused are sentences about the pauses that keep the lock.
	Paused []string
	// Queue are its waiters.
	Queue api.WaiterList
	// Leftovers are the names of fields that an earlier holder left and that are ignored.
	Leftovers []string
}

// Show reads one lock. The name must be valid, as ParseName returns it.
func (a *Admin) Show(ctx context.Context, name string) (Detail, error) {
	const maxWaiters = 1000 // the maximum number of waiters in a Queue
	entry, err := a.store.ReadOne(ctx, name)
	if errors.Is(err, lockstore.ErrNoLock) {
		return Detail{}, a.failed(ctx, a.missing(ctx, name), etcd.Read)
	}
	if err != nil {
		return Detail{}, a.failed(ctx, err, etcd.Read)
	}
	d, err := a.detail(ctx, entry)
	d.Paused = a.paused(ctx, name)
	tickets, unread := a.tickets(ctx)
	d.Queue = tickets.For(name, maxWaiters)
	if d.Waiters = d.Queue.Total(); unread != nil {
		d.Queue.Error = api.ErrorText(unread)
	}
	return d, a.failed(ctx, err, etcd.Read)
}

// Ask asks the holder of a lock what it does now, and returns the lock with its answer.
func (a *Admin) Ask(ctx context.Context, name string) (Detail, error) {
	if _, err := a.Show(ctx, name); err != nil {
		return Detail{}, err
	}
	if err := a.manual.Ask(ctx, name, Who()); err != nil {
		return Detail{}, a.failedOn(ctx, fmt.Errorf("lock %s: %w", quoted(name), err), etcd.ReadWrite, a.config.AskKeys())
	}
	return a.Show(ctx, name)
}

func (a *Admin) detail(ctx context.Context, e lockstore.Record) (Detail, error) {
	d := Detail{At: a.now().UTC()}
	d.Lock = api.NewLock(&e.Lock, d.At, 0)
	d.Fields, d.MoreFields = e.Shown()
	var err error
	if e.Token != 0 {
		d.Leftovers, err = a.leftovers(ctx, e)
	}
	d.Outlook = outlook(&e.Lock, d)
	return d, err
}

// leftovers returns the fields that were last written before the lock was taken.
func (a *Admin) leftovers(ctx context.Context, e lockstore.Record) ([]string, error) {
	var fields []string
	var gets []clientv3.Op
	for f := protocol.FieldUnknown + 1; f < protocol.FieldUUID; f++ {
		fields = append(fields, f.String())
		gets = append(gets, clientv3.OpGet(a.layout.Key(e.Name, f.String()), clientv3.WithKeysOnly()))
	}
	answers, err := a.store.Get(ctx, gets)
	if err != nil {
		return nil, fmt.Errorf("read when the fields of lock %s were written: %w", quoted(e.Name), err)
	}
	var left []string
	for i, answer := range answers {
		for _, kv := range answer.Kvs {
			if kv.ModRevision < e.Token {
				left = append(left, fields[i])
			}
		}
	}
	return left, nil
}

// missing returns the error for a lock that does not exist. It names what exists below.
func (a *Admin) missing(ctx context.Context, name string) error {
	const nearbyKeys, nearbyNames = 200, 5 // that are looked at, and named
	from, end := a.layout.Range(name)
	found, err := a.store.Get(ctx, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(nearbyKeys))})
	if err != nil {
		return fmt.Errorf("look below lock %s: %w", quoted(name), err)
	}
	words, foreign := fmt.Sprintf("no lock %s under %s", quoted(name), a.config.Prefix), false
	var nested []string
	for _, kv := range found[0].Kvs {
		n, _, valid := a.layout.Split(kv.Key)
		below := quoted(string(n))
		switch {
		case valid && string(n) == name:
			foreign = true
		case valid && !slices.Contains(nested, below):
			nested = append(nested, below)
		}
	}
	if foreign {
		words += "; it has keys with a lease, such as those of etcd's own mutexes, which unlocker never touches"
	}
	if n := len(nested); n > 0 {
		words += "; there are locks below it: " + strings.Join(nested[:min(n, nearbyNames)], ", ")
		switch {
		case found[0].More:
			words += ", and more"
		case n > nearbyNames:
			words += fmt.Sprintf(", and %d more", n-nearbyNames)
		}
	}
	return noLock(words)
}

// noLock is lockstore.ErrNoLock in other words.
type noLock string

func (e noLock) Error() string { return string(e) }

func (e noLock) Unwrap() error { return lockstore.ErrNoLock }

// History reads who held a lock. The name must be valid, as ParseName returns it. The error is
// lockstore.ErrNoLock if nobody held it as far as etcd still knows.
func (a *Admin) History(ctx context.Context, name string, b history.Bounds) (api.History, error) {
	audit := a.config.AuditKeys()
	r := history.Reader{
		Store: a.store, AuditPrefix: audit, Ahead: a.clocks.Load().hosts,
		ExplainAudit: func(err error) error { return a.failedOn(ctx, err, etcd.Read, audit) },
	}
	h, err := r.Read(ctx, name, b)
	switch {
	case err != nil:
		return h, a.failed(ctx, err, etcd.Read)
	case len(h.Periods) > 0:
		return h, nil
	case !h.Truncated && !h.Compacted:
		return h, fmt.Errorf("nobody ever held lock %s under %s: %w", quoted(name), a.config.Prefix, lockstore.ErrNoLock)
	}
	why := "etcd has nothing older, it was compacted"
	if h.Truncated {
		why = "--timeout ends before older revisions are read"
	}
	return h, fmt.Errorf("nobody held lock %s under %s since revision %d: %w: %s",
		quoted(name), a.config.Prefix, h.FromRevision, lockstore.ErrNoLock, why)
}

// ExplainHistory adds what a daemon knows about the ends of the periods. On error they are as they were.
func ExplainHistory(ctx context.Context, from client.Daemon, h *api.History) error {
	const maxForced = 1000 // the maximum number of forced unlocks that a daemon is asked for
	forced, err := from.Forced(ctx, h.Name, maxForced)
	if err != nil {
		return ofDaemon(from, err)
	}
	history.AddForced(h, forced)
	return nil
}

// maxNative is the maximum number of keys whose values and leases Native reads, the holders first.
const maxNative = 10_000

// ErrNoNativePrefixes is the error of Native if there is nothing to list.
var ErrNoNativePrefixes = errors.New("native_prefixes is empty: --native needs them, for example --native-prefixes /locks/")

// Native lists the locks and elections of etcd's own clients. If a prefix cannot be listed, it
// returns the others and an error.
func (a *Admin) Native(ctx context.Context) (api.NativeList, error) {
	if len(a.config.NativePrefixes) == 0 {
		return api.NativeList{}, ErrNoNativePrefixes
	}
	var prefixes []api.NativePrefix
	var errs []error
	limits := native.Limits{Keys: 200_000, Locks: maxNative, Waiters: 1000} // of each prefix
	unseen := func(string, api.NativeKey, time.Time) time.Time { return time.Time{} }
	for _, prefix := range a.config.NativePrefixes {
		listing, err := native.List(ctx, a.client, prefix, a.config.Etcd.RequestTimeout, limits, unseen)
		if err != nil {
			errs = append(errs, a.failedOn(ctx, err, etcd.Read, prefix))
			continue
		}
		prefixes = append(prefixes, listing.NativePrefix)
	}
	limited, cancel := context.WithTimeout(ctx, a.config.Etcd.RequestTimeout)
	defer cancel()
	native.Describe(limited, a.client.Client, maxNative, prefixes)
	return api.NativeList{Prefixes: prefixes}, errors.Join(errs...)
}

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
