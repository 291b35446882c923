package admin

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// follower applies what etcd shows to a Watch.
type follower struct {
	*Watch
	// listed is the revision of the last listing.
	listed int64
}

var errResumed = errors.New("the connection was lost")

// The pause after a failure doubles from minBackoff to maxBackoff, with jitter.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func (f *follower) run(ctx context.Context) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := f.list(ctx)
		if err != nil && f.listed == 0 {
			return f.admin.failed(ctx, err, etcd.Read)
		}
		if err == nil {
			backoff = minBackoff
			err = f.follow(ctx)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the failure of a watch that was stopped
		}
		f.setTrouble(f.admin.failed(ctx, err, etcd.Read))
		select {
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *follower) list(ctx context.Context) error {
	listed := make(map[string]*watched)
	a := f.admin
	revision, err := scan.List(ctx, a.client.KV, a.layout, a.config.Etcd.RequestTimeout, func(part []protocol.Lock) error {
		for i := range part {
			if f.filter.named(part[i].Name) {
				listed[part[i].Name] = &watched{Lock: part[i], shown: protocol.NumStates}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.listed = revision
	f.replace(listed)
	return nil
}

// follow applies what is written after the listing until the watch fails.
func (f *follower) follow(ctx context.Context) error {
	layout := f.admin.layout
	return etcd.Watch{
		Client: f.admin.client.Client, Key: layout.Prefix(),
		Options: []clientv3.OpOption{clientv3.WithRange(layout.End()), clientv3.WithRev(f.listed), clientv3.WithFragment()},
		Silence: f.admin.config.Etcd.RequestTimeout, Resumed: errResumed,
	}.Run(ctx, func(r clientv3.WatchResponse) { f.apply(r.Events) })
}

// apply applies events that are newer than the listing.
func (f *follower) apply(events []*clientv3.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := protocol.TimestampOf(f.admin.now())
	for _, ev := range events {
		if ev.Kv.ModRevision <= f.listed {
			continue
		}
		name, field, valid := f.admin.layout.Split(ev.Kv.Key)
		k := f.locks[string(name)]
		switch {
		case k == nil && (ev.Type == mvccpb.DELETE || !f.filter.named(string(name))):
			continue
		case k == nil:
			k = &watched{Lock: protocol.Lock{Name: string(name)}, shown: protocol.NumStates}
			f.locks[k.Name] = k
		}
		known := protocol.FieldUnknown
		if valid {
			known = protocol.ParseField(field)
		}
		if ev.Type == mvccpb.DELETE {
			if k.whole == nil {
				whole := k.Lock
				k.whole = &whole
			}
			k.Delete(known, ev.Kv.ModRevision)
		} else {
			k.Put(protocol.KV{Field: known, Value: ev.Kv.Value, Create: ev.Kv.CreateRevision, Mod: ev.Kv.ModRevision, Lease: ev.Kv.Lease})
		}
		f.awaits(k, now)
		f.enqueue(k)
	}
	if len(events) > 0 { // not for a progress notice
		f.notify()
	}
}
