//go:build hunt

package hunt

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/sim/judges"
)

// replay watches every revision from the first one.
type replay struct {
	world  *world
	client *clientv3.Client

	mu        sync.Mutex
	seen      int64
	locks     map[string]*lifetime // those that are held, by name
	lifetimes []*lifetime
	election  judges.Election
}

// lifetime is the time from the creation of a uuid key to its deletion. Its times are those
// at which the replay saw the events, which is never before they happened.
type lifetime struct {
	*judges.Lock // as it is, or was right before its end; no longer there if its holder unlocked it
	uuid         string
	token        int64
	created      time.Time
	dated        time.Time // the last write of auto_unlock_at
	written      time.Time // the last write of any key
	ended        time.Time
	end          int64 // the revision of ended
	deleted      int   // how many keys were deleted at it
	forced       bool  // not unlocked by the holder
}

func newReplay(w *world, client *clientv3.Client) *replay {
	return &replay{world: w, client: client, locks: map[string]*lifetime{}, election: judges.Election{Prefix: electionPrefix}}
}

func (r *replay) revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// held returns the number of locks.
func (r *replay) held() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.locks)
}

func (r *replay) run(ctx context.Context) {
	for ctx.Err() == nil {
		r.follow(ctx)
		pause(ctx, 20*time.Millisecond)
	}
}

// follow watches from the next revision, until the watch fails or stalls.
func (r *replay) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stall := time.AfterFunc(3*time.Second, cancel)
	defer stall.Stop()
	watcher := clientv3.NewWatcher(r.client)
	defer func() { go watcher.Close() }() // it hangs if etcd refuses the watch in the same instant
	for resp := range watcher.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(r.revision()+1)) {
		if resp.CompactRevision != 0 {
			r.world.violate("the hunt itself: compacted at %d before it was replayed", resp.CompactRevision)
			return
		}
		if resp.Err() != nil {
			return
		}
		stall.Reset(3 * time.Second) // the pulse writes all the time
		r.take(resp.Events, time.Now())
	}
}

func (r *replay) take(events []*clientv3.Event, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(events) > 0 {
		rev, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == rev {
			n++
		}
		if rev <= r.seen {
			r.world.violate("the hunt itself: revision %d came after %d", rev, r.seen)
		}
		r.seen = rev
		r.revised(rev, events[:n], now)
		events = events[n:]
	}
}

// revised applies all events of one revision.
func (r *replay) revised(rev int64, events []*clientv3.Event, now time.Time) {
	deleted, gone, unlocked := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, ev := range events {
		r.election.Apply(ev, now)
		switch name, field, ok := splitKey(string(ev.Kv.Key)); {
		case strings.HasPrefix(string(ev.Kv.Key), released):
			unlocked[string(ev.Kv.Value)] = true
		case !ok:
		case ev.Type == mvccpb.PUT:
			r.put(name, field, ev, now)
		default:
			deleted[name]++
			gone[name] = gone[name] || field == "uuid"
		}
	}
	for name, keys := range deleted {
		l := r.locks[name]
		if l == nil || !gone[name] {
			r.world.violate("S4: revision %d deletes %d keys of %s, but not the lock", rev, keys, name)
			continue
		}
		l.ended, l.end, l.deleted, l.forced = now, rev, keys, !unlocked[l.uuid]
		if !l.forced {
			if keys != len(l.Fields) {
				r.world.violate("the hunt itself: revision %d unlocks %s and leaves keys", rev, name)
			}
			l.Fields = nil
		}
		delete(r.locks, name)
	}
}

func (r *replay) put(name, field string, ev *clientv3.Event, now time.Time) {
	l := r.locks[name]
	switch {
	case field == "uuid" && ev.IsCreate():
		l = &lifetime{Lock: judges.NewLock(name), uuid: string(ev.Kv.Value), token: ev.Kv.ModRevision, created: now}
		r.locks[name] = l
		r.lifetimes = append(r.lifetimes, l)
	case l == nil:
		// The keys come in the order of the transaction, with uuid first.
		r.world.violate("the hunt itself, or S5: %s is put without a lock", ev.Kv.Key)
		return
	}
	l.Fields[field] = ev.Kv
	l.written = now
	if field == "auto_unlock_at" {
		l.dated = now
	}
}

// electionPrefix is that of the keys of candidates, by default.
const electionPrefix = "/unlocker/leader" + prefix

// splitKey returns the name and the field of a key under the prefix.
func splitKey(key string) (name, field string, ok bool) { return judges.Split(prefix, []byte(key)) }
