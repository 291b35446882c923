package native

import (
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Limits of what Describe reads at a time, and of the bytes that it keeps of a value.
const (
	inFlight = 8
	maxValue = 1 << 10
)

// shown is a key in an answer. It is dropped if etcd does not have it any more.
type shown struct {
	Key
	answer api.NativeKey
	gone   bool
}

// Describe adds the locks of listings to prefixes, with values and leases as etcd has them now: of
// the first maximum keys, the holders first, and until ctx is done. What was released since the
// listing is left out.
func Describe(ctx context.Context, client *clientv3.Client, maximum int, prefixes []api.NativePrefix, listings []Listing) {
	keys := make([][][]shown, len(listings))
	var holders, waiters []*shown
	for i, listing := range listings {
		keys[i] = make([][]shown, len(listing.Locks))
		for j, l := range listing.Locks {
			for _, k := range l.Keys {
				keys[i][j] = append(keys[i][j], newShown(k))
			}
			holders = append(holders, &keys[i][j][0])
			for w := range keys[i][j][1:] {
				waiters = append(waiters, &keys[i][j][w+1])
			}
		}
	}
	all := slices.Concat(holders, waiters)
	each(all[:min(len(all), maximum)], func(k *shown) { k.read(ctx, client) })
	for i, listing := range listings {
		p := &prefixes[i]
		p.At, p.Revision, p.Held, p.Waiting, p.Other = listing.At, listing.Revision, listing.Held, listing.Waiting, listing.Other
		p.MoreHolders = listing.Total - len(listing.Locks)
		for j, l := range listing.Locks {
			if h, held := holderOf(l, keys[i][j]); held {
				p.Holders = append(p.Holders, h)
			}
		}
	}
}

func newShown(k Key) shown {
	return shown{Key: k, answer: api.NativeKey{
		Key: protocol.Clip([]byte(k.Key), maxKey), Revision: k.Created, Lease: leaseID(leaseOf(k.Key)), LeaseState: api.LeaseUnknown,
	}}
}

// each calls do for all keys, several at a time.
func each(keys []*shown, do func(*shown)) {
	next := make(chan *shown)
	var all sync.WaitGroup
	for range inFlight {
		all.Go(func() {
			for k := range next {
				do(k)
			}
		})
	}
	for _, k := range keys {
		next <- k
	}
	close(next)
	all.Wait()
}

// read reads the value and the lease of a key. Where etcd does not answer, they stay unknown.
func (k *shown) read(ctx context.Context, client *clientv3.Client) {
	resp, err := client.Get(ctx, k.Key.Key)
	if err != nil {
		return
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != k.Created {
		k.gone = true
		return
	}
	kv := resp.Kvs[0]
	k.answer.Lease, k.answer.Value = leaseID(kv.Lease), protocol.Clip(kv.Value, maxValue)
	if len(kv.Value) > maxValue {
		k.answer.TruncatedFrom = len(kv.Value)
	}
	if kv.Lease == 0 {
		k.answer.LeaseState = api.LeaseNone
		return
	}
	lease, err := client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	switch {
	case err != nil:
	case lease.TTL < 0:
		k.answer.LeaseState = api.LeaseGone
	default:
		k.answer.LeaseState, k.answer.TTL, k.answer.GrantedTTL = api.LeaseAlive, lease.TTL, lease.GrantedTTL
	}
}

// holderOf returns a lock as it is without the keys that are gone: then the next in turn holds.
func holderOf(l Lock, keys []shown) (_ api.NativeHolder, held bool) {
	listed := len(keys)
	left := slices.DeleteFunc(keys, func(k shown) bool { return k.gone })
	if len(left) == 0 {
		return api.NativeHolder{}, false
	}
	h := api.NativeHolder{
		Name: protocol.Clip([]byte(l.Name), maxKey), NativeKey: left[0].answer, Foreign: l.Foreign, Since: l.Since, Waiters: []api.NativeKey{},
		MoreWaiters: l.Waiting - (listed - 1),
	}
	if left[0].Key != l.Keys[0] {
		if h.Foreign = false; !h.Since.IsZero() {
			h.Since = time.Now().UTC()
		}
	}
	for _, k := range left[1:] {
		h.Waiters = append(h.Waiters, k.answer)
	}
	return h, true
}
