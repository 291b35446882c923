package follow

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcd"
)

// errAgain is no failure: the prefix is to be listed again.
var errAgain = errors.New("list again")

// watch passes on what is written after a revision until the watch fails. Its first response stops
// the timer stale.
func (f *Follower) watch(ctx context.Context, revision int64, stale *time.Timer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var room *time.Timer // runs once there is room for a key that was omitted
	return etcd.Watch{
		Client: f.Client, Key: f.Prefix,
		Options: []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithRev(revision), clientv3.WithFragment(), clientv3.WithCreatedNotify()},
		Silence: f.Freshness, Resumed: errAgain,
	}.Run(ctx, func(r clientv3.WatchResponse) {
		if f.pass(ctx, r.Events, revision) && room == nil {
			room = time.AfterFunc(relistInterval, func() { cancel(errAgain) }) // meanwhile the watch goes on
		}
		stale.Stop()
		// Not before: a watch that never begins shows nothing of what follows the listing.
		f.set(func(s *Status) { s.InView, s.Err = true, nil })
	})
}

// pass passes on events that are newer than the listing, and reports whether there is room for a
// key that was omitted.
func (f *Follower) pass(ctx context.Context, events []*clientv3.Event, listed int64) (room bool) {
	for _, ev := range events {
		if ev.Kv.ModRevision <= listed {
			continue
		}
		_, known := f.known[f.key(ev.Kv)]
		switch {
		case ev.Type == mvccpb.DELETE && known:
			f.gone(f.key(ev.Kv), ev.Kv.ModRevision)
		case ev.Type != mvccpb.DELETE && f.fits(ev.Kv) && (known || len(f.known) < f.MaxKeys):
			f.written(ev.Kv)
		case ev.Type != mvccpb.DELETE:
			f.omit(ctx, true)
		}
		room = room || ev.Type == mvccpb.DELETE && f.Status().Omitted
	}
	return room
}
