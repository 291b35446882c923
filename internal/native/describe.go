package native

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

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
		kept := p.Holders[:0]
		for _, h := range p.Holders {
			if left(&h) {
				kept = append(kept, h)
			}
		}
		p.Holders = kept
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

// left makes a lock what it is without the keys that are gone: then the next in turn holds. It
// reports whether one is left.
func left(h *api.NativeHolder) bool {
	h.Waiters = slices.DeleteFunc(h.Waiters, func(k api.NativeKey) bool { return k.Key == "" })
	if h.Key == "" {
		if len(h.Waiters) == 0 {
			return false
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
	return true
}
