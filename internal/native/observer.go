// Package native reads the locks and elections of etcd's own clients (concurrency.Mutex and
// Election, etcdctl lock and elect, the services v3lock and v3election): keys named by a lease,
// NAME/LEASE, of which the oldest below NAME/ holds.
//
// Guaranteed: nothing is written. What a listing reads and keeps is limited, since any client may
// have written it, and values and leases are read only for what is shown, a limited number at a
// time and for a limited time. A failure of a prefix is part of its answer and of nothing else.
//
// Not guaranteed: that every change is noticed. A prefix is listed every few seconds, keys only:
// a watch would deliver the value of each write below it. So a key that holds for less than that
// may never be seen.
package native

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// Options are the options of New; all are required.
type Options struct {
	Client *clientv3.Client
	// Prefixes end with a slash and do not overlap.
	Prefixes []string
	// RequestTimeout limits each request, Interval is the minimum time between two listings.
	RequestTimeout, Interval time.Duration
	Limits                   Limits
	// Explain adds the missing permission on a prefix to an error of etcd.
	Explain func(err error, prefix string) error
	Logger  *slog.Logger
}

// Observer lists prefixes again and again while it runs. Its other methods may be called
// concurrently.
type Observer struct {
	Options
	levels   etcd.Levels // of prefixes; only Run uses it
	mu       sync.Mutex
	observed []observed

	// turn is taken by the one caller of View that reads from etcd.
	turn   chan struct{}
	view   api.NativeList
	viewed time.Time
}

// observed is what is known of a prefix. Only Run uses since.
type observed struct {
	listing Listing
	err     error
	// since is when each lock was first seen to be held by its holder, by a hash of both.
	since map[uint64]time.Time
}

// New returns an Observer that does nothing until Run is called.
func New(o Options) (*Observer, error) {
	if o.Client == nil || o.Explain == nil || o.Logger == nil || o.RequestTimeout <= 0 || o.Interval <= 0 || o.Limits == (Limits{}) {
		return nil, errors.New("native: Client, RequestTimeout, Interval, Limits, Explain and Logger are required")
	}
	return &Observer{Options: o, levels: etcd.Levels{}, observed: make([]observed, len(o.Prefixes)), turn: make(chan struct{}, 1)}, nil
}

// Run lists all prefixes until ctx is done, and then returns nil. No failure of etcd ends it.
func (o *Observer) Run(ctx context.Context) error {
	// rest is how many times longer than a listing the pause after it is, so that listing many
	// keys costs etcd a small share of its time; maxPause limits that.
	const rest, maxPause = 20, time.Minute
	seed := maphash.MakeSeed()
	for {
		began := time.Now()
		for i := range o.Prefixes {
			o.list(ctx, i, seed)
		}
		select {
		case <-time.After(max(o.Interval, min(rest*time.Since(began), maxPause))):
		case <-ctx.Done():
			return nil
		}
	}
}

func (o *Observer) list(ctx context.Context, i int, seed maphash.Seed) {
	prefix, known := o.Prefixes[i], &o.observed[i]
	since := make(map[uint64]time.Time)
	listing, err := List(ctx, o.Client, prefix, o.RequestTimeout, o.Limits, func(name string, holder api.NativeKey, at time.Time) time.Time {
		id := maphash.Comparable(seed, struct {
			name   string
			holder api.NativeKey
		}{name, holder})
		first, seen := known.since[id]
		if !seen {
			first = at
		}
		since[id] = first
		return first
	})
	if ctx.Err() != nil {
		return
	}
	err = o.Explain(err, prefix)
	if err != nil {
		o.Logger.Log(ctx, o.levels.Of(prefix), api.LogNativeNotListed, "prefix", prefix, "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if known.err = err; err == nil {
		known.listing, known.since = listing, since
	}
}

// Listings returns the listings of the prefixes whose last one succeeded. They must not be changed.
func (o *Observer) Listings() (all []Listing) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, known := range o.observed {
		if known.err == nil && known.listing.Revision > 0 {
			all = append(all, known.listing)
		}
	}
	return all
}

// View returns the locks of the last listings, with values and leases as etcd has them now. Its
// answer may be a second old and must not be changed. An error means that ctx is done.
func (o *Observer) View(ctx context.Context) (api.NativeList, error) {
	// How many keys it reads from etcd, for how long, and for how long its answer is given to others.
	const maxDescribed, describeFor, viewAge = 512, 2 * time.Second, time.Second
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return api.NativeList{}, ctx.Err()
	}
	if time.Since(o.viewed) < viewAge {
		return o.view, nil
	}
	prefixes := o.listed()
	limited, cancel := context.WithTimeout(ctx, describeFor)
	defer cancel()
	Describe(limited, o.Client, maxDescribed, prefixes)
	if ctx.Err() != nil {
		return api.NativeList{}, ctx.Err()
	}
	o.view, o.viewed = api.NativeList{Prefixes: prefixes}, time.Now()
	return o.view, nil
}

// listed returns the last listing of each prefix, which is empty before the first one.
func (o *Observer) listed() []api.NativePrefix {
	o.mu.Lock()
	defer o.mu.Unlock()
	prefixes := make([]api.NativePrefix, len(o.observed))
	for i, known := range o.observed {
		prefixes[i] = known.listing.NativePrefix
		prefixes[i].Prefix = o.Prefixes[i]
		if known.err != nil {
			prefixes[i].Error = api.ErrorText(known.err)
		}
	}
	return prefixes
}

// List lists a prefix, which ends with a slash. The timeout limits each request.
func List(ctx context.Context, kv clientv3.KV, prefix string, timeout time.Duration, limits Limits, seen Seen) (Listing, error) {
	c := collector{limits: limits, seen: seen, listing: Listing{NativePrefix: api.NativePrefix{Prefix: prefix}}}
	add := func(page *clientv3.GetResponse) error {
		if c.listing.Revision == 0 {
			c.listing.At, c.listing.Revision = time.Now().UTC(), page.Header.Revision
			if page.Count > int64(limits.Keys) { // of all pages
				return fmt.Errorf("%d keys below %s: at most %d are read", page.Count, prefix, limits.Keys)
			}
		}
		for _, kv := range page.Kvs {
			c.add(string(kv.Key), kv.CreateRevision)
		}
		return nil
	}
	if err := etcd.Pages(ctx, kv, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, etcd.LargePage, timeout, add, clientv3.WithKeysOnly()); err != nil {
		return Listing{}, err
	}
	return c.done(), nil
}
