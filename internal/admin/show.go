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

// maxWaiters is the maximum number of waiters in a Queue.
const maxWaiters = 1000

// Show reads one lock. The name must be valid, as ParseName returns it.
func (a *Admin) Show(ctx context.Context, name string) (Detail, error) {
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

// Limits of the search for locks below a name.
const (
	nearbyKeys  = 200
	nearbyNames = 5
)

// missing returns the error for a lock that does not exist. It names what exists below.
func (a *Admin) missing(ctx context.Context, name string) error {
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

// History is what is known about who held a lock.
type History struct {
	api.History
	// Asked is the URL of the daemon that was asked how the periods ended; empty if none was.
	Asked string `json:"-"`
}

// History reads who held a lock. The name must be valid, as ParseName returns it. The error is
// lockstore.ErrNoLock if nobody held it as far as etcd still knows.
func (a *Admin) History(ctx context.Context, name string, b history.Bounds) (History, error) {
	audit := a.config.AuditKeys()
	r := history.Reader{
		Store: a.store, AuditPrefix: audit, Ahead: a.clocks.Load().hosts,
		ExplainAudit: func(err error) error { return a.failedOn(ctx, err, etcd.Read, audit) },
	}
	h, err := r.Read(ctx, name, b)
	switch {
	case err != nil:
		return History{}, a.failed(ctx, err, etcd.Read)
	case len(h.Periods) > 0:
		return History{History: h}, nil
	case !h.Truncated && !h.Compacted:
		return History{}, fmt.Errorf("nobody ever held lock %s under %s: %w", quoted(name), a.config.Prefix, lockstore.ErrNoLock)
	}
	why := "etcd has nothing older, it was compacted"
	if h.Truncated {
		why = "--timeout ends before older revisions are read"
	}
	return History{}, fmt.Errorf("nobody held lock %s under %s since revision %d: %w: %s",
		quoted(name), a.config.Prefix, h.FromRevision, lockstore.ErrNoLock, why)
}

// maxForced is the maximum number of forced unlocks that a daemon is asked for.
const maxForced = 1000

// Explain adds what a daemon knows about the ends of the periods. On error they are as they were.
func (h *History) Explain(ctx context.Context, from client.Daemon) error {
	forced, err := from.Forced(ctx, h.Name, maxForced)
	if err != nil {
		return ofDaemon(from, err)
	}
	h.Asked = from.URL
	history.AddForced(&h.History, forced)
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
