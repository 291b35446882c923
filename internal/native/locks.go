package native

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Listing is what one prefix holds at one revision of etcd. Of the keys only the name, as it is in
// etcd, and the revision are known: Describe adds the rest.
type Listing struct {
	api.NativePrefix
	// Oldest is the first Since of all locks; zero if nothing is held.
	Oldest time.Time
}

// Limits bound what is read below a prefix, and what is kept of it.
type Limits struct {
	// Keys is the maximum number of keys: more are an error. Locks and Waiters are the maximum
	// number of locks, and of those that wait for one, in a Listing.
	Keys, Locks, Waiters int
}

// Seen returns since when a key is known to hold a lock. It is called with one that holds it at the
// time of the listing.
type Seen func(name string, holder api.NativeKey, at time.Time) time.Time

// maxKey is the length of the longest key that is taken for a lock's.
const maxKey = 1 << 10

// collector makes locks of the keys below a prefix, which it gets in order.
type collector struct {
	limits  Limits
	seen    Seen
	listing Listing
	locks   int
	// open are the directories of which more keys may come: each is below the one before.
	open []*directory
}

// directory is a part of a key that ends with a slash, and what is below it.
type directory struct {
	path string
	// oldest is the oldest of all keys below the path. concurrency.Mutex waits for it, whether
	// it is the key of a mutex, of one with a longer name, or of something else.
	oldest api.NativeKey
	// own are the oldest keys directly below the path that are named by a lease; count counts
	// all of them.
	own   []api.NativeKey
	count int
}

func (c *collector) add(key string, created int64) {
	if len(key) > maxKey {
		c.listing.Other++
		return
	}
	c.closeUntil(key)
	from := len(c.listing.Prefix) - 1
	if n := len(c.open); n > 0 {
		from = len(c.open[n-1].path)
	}
	for i := from; i < len(key); i++ {
		if key[i] == '/' {
			c.open = append(c.open, &directory{path: key[:i+1]})
		}
	}
	d := c.open[len(c.open)-1]
	k := api.NativeKey{Key: key, Revision: created}
	d.oldest = older(d.oldest, k)
	if leaseOf(key) == 0 {
		c.listing.Other++
		return
	}
	d.count++
	d.insert(k, c.limits.Waiters+1)
}

// older returns the key that was created first; the zero NativeKey is none.
func older(a, b api.NativeKey) api.NativeKey {
	if a.Key == "" || b.Revision < a.Revision {
		return b
	}
	return a
}

func byAge(a, b api.NativeKey) int { return cmp.Compare(a.Revision, b.Revision) }

func (d *directory) insert(k api.NativeKey, limit int) {
	if n := len(d.own); n == limit && byAge(d.own[n-1], k) <= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(d.own, k, func(a, b api.NativeKey) int { return cmp.Or(byAge(a, b), -1) })
	d.own = slices.Insert(d.own[:min(len(d.own), limit-1)], i, k)
}

// leaseOf returns the lease in the last segment of a key, 0 for none.
func leaseOf(key string) int64 {
	segment := key[strings.LastIndexByte(key, '/')+1:]
	id, err := strconv.ParseInt(segment, 16, 64)
	if err != nil || leaseID(id) != segment {
		return 0
	}
	return id
}

// leaseID formats a lease as concurrency.Mutex and etcdctl do.
func leaseID(id int64) string { return strconv.FormatInt(id, 16) }

// closeUntil closes the open directories, from the last one, until one that the key is in.
func (c *collector) closeUntil(key string) {
	for n := len(c.open) - 1; n >= 0 && !strings.HasPrefix(key, c.open[n].path); n-- {
		d := c.open[n]
		c.open = c.open[:n]
		if n > 0 {
			parent := c.open[n-1]
			parent.oldest = older(parent.oldest, d.oldest)
		}
		if d.count > 0 {
			c.lock(d)
		}
	}
}

func (c *collector) lock(d *directory) {
	keys, waiting := d.own, d.count-1
	foreign := d.own[0] != d.oldest
	if foreign {
		keys, waiting = slices.Insert(d.own, 0, d.oldest), d.count // all of its own keys wait for it
	} else {
		c.listing.Held++
	}
	keys = keys[:min(len(keys), c.limits.Waiters+1)]
	h := api.NativeHolder{
		Name: strings.TrimSuffix(d.path, "/"), NativeKey: keys[0], Foreign: foreign, Waiters: keys[1:], MoreWaiters: waiting - (len(keys) - 1),
	}
	c.listing.Waiting += waiting
	c.locks++
	h.Since = c.seen(h.Name, h.NativeKey, c.listing.At)
	if c.listing.Oldest.IsZero() || h.Since.Before(c.listing.Oldest) {
		c.listing.Oldest = h.Since
	}
	if c.listing.Holders = append(c.listing.Holders, h); len(c.listing.Holders) >= 2*c.limits.Locks {
		c.trim()
	}
}

// trim keeps the locks with the oldest holders.
func (c *collector) trim() {
	all := c.listing.Holders
	slices.SortFunc(all, func(a, b api.NativeHolder) int {
		return cmp.Or(byAge(a.NativeKey, b.NativeKey), strings.Compare(a.Name, b.Name))
	})
	c.listing.Holders = slices.Delete(all, min(len(all), c.limits.Locks), len(all))
}

// done returns the listing once all keys were added.
func (c *collector) done() Listing {
	c.closeUntil("")
	c.trim()
	c.listing.MoreHolders = c.locks - len(c.listing.Holders)
	return c.listing
}

// Limits of what Describe reads at a time, and of the bytes that it keeps of a value.
const (
	inFlight = 8
	maxValue = 1 << 10
)

// Describe adds values and leases, as etcd has them now, to the locks of listings: of the first
// maximum keys, the holders first, and until ctx is done. What was released since the listing is left
// out. It changes the prefixes, but none of the locks that they had.
func Describe(ctx context.Context, client *clientv3.Client, maximum int, prefixes []api.NativePrefix) {
	var holders, waiters []*api.NativeKey
	for i := range prefixes {
		p := &prefixes[i]
		p.Holders = append([]api.NativeHolder{}, p.Holders...)
		for j := range p.Holders {
			h := &p.Holders[j]
			h.Waiters = append([]api.NativeKey{}, h.Waiters...)
			holders = append(holders, &h.NativeKey)
			for w := range h.Waiters {
				waiters = append(waiters, &h.Waiters[w])
			}
		}
	}
	all := slices.Concat(holders, waiters)
	for _, k := range all {
		k.Lease, k.LeaseState = leaseID(leaseOf(k.Key)), api.LeaseUnknown
	}
	var reads errgroup.Group
	reads.SetLimit(inFlight)
	for _, k := range all[:min(len(all), maximum)] {
		reads.Go(func() error {
			read(ctx, client, k)
			return nil
		})
	}
	_ = reads.Wait()
	for i := range prefixes {
		p := &prefixes[i]
		for j := range p.Holders {
			left(&p.Holders[j])
		}
		p.Holders = slices.DeleteFunc(p.Holders, func(h api.NativeHolder) bool { return h.Key == "" })
	}
}

// read reads the value and the lease of a key. Where etcd does not answer, they stay unknown. A key
// that etcd does not have any more becomes the zero NativeKey.
func read(ctx context.Context, client *clientv3.Client, k *api.NativeKey) {
	resp, err := client.Get(ctx, k.Key)
	if err != nil {
		return
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != k.Revision {
		*k = api.NativeKey{}
		return
	}
	kv := resp.Kvs[0]
	k.Lease, k.Value = leaseID(kv.Lease), protocol.Clip(kv.Value, maxValue)
	if len(kv.Value) > maxValue {
		k.TruncatedFrom = len(kv.Value)
	}
	if kv.Lease == 0 {
		k.LeaseState = api.LeaseNone
		return
	}
	lease, err := client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	switch {
	case err != nil:
	case lease.TTL < 0:
		k.LeaseState = api.LeaseGone
	default:
		k.LeaseState, k.TTL, k.GrantedTTL = api.LeaseAlive, lease.TTL, lease.GrantedTTL
	}
}

// left makes a lock what it is without the keys that are gone: then the next in turn holds. Its Key
// is empty if none is left.
func left(h *api.NativeHolder) {
	h.Waiters = slices.DeleteFunc(h.Waiters, func(k api.NativeKey) bool { return k.Key == "" })
	if h.Key == "" {
		if len(h.Waiters) == 0 {
			return
		}
		h.NativeKey, h.Waiters = h.Waiters[0], h.Waiters[1:]
		if h.Foreign = false; !h.Since.IsZero() {
			h.Since = time.Now().UTC()
		}
	}
	h.Name, h.Key = protocol.Clip([]byte(h.Name), maxKey), protocol.Clip([]byte(h.Key), maxKey)
	for i := range h.Waiters {
		h.Waiters[i].Key = protocol.Clip([]byte(h.Waiters[i].Key), maxKey)
	}
}
