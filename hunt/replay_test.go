//go:build hunt

package hunt

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// replay watches every revision from the first one.
type replay struct {
	world  *world
	client *clientv3.Client

	mu        sync.Mutex
	seen      int64
	locks     map[string]*heldLock // by name
	lifetimes []*lifetime
	election  election
}

// heldLock is a lock with its keys.
type heldLock struct {
	keys map[string]*mvccpb.KeyValue
	*lifetime
}

// lifetime is the time from the creation of a uuid key to its deletion. Its times are those
// at which the replay saw the events, which is never before they happened.
type lifetime struct {
	name, uuid string
	token      int64
	created    time.Time
	dated      time.Time // the last write of auto_unlock_at
	written    time.Time // the last write of any key
	newest     int64     // the revision of written
	autoUnlock float64
	ended      time.Time
	end        int64 // the revision of ended
	forced     bool  // not unlocked by the holder
}

func newReplay(w *world, client *clientv3.Client) *replay {
	return &replay{world: w, client: client, locks: map[string]*heldLock{}}
}

func (r *replay) revision() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// held returns the number of locks.
func (r *replay) held() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.locks {
		if len(h.keys) > 0 {
			n++
		}
	}
	return n
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
	gone, unlocked := map[string]bool{}, map[string]bool{}
	for _, ev := range events {
		r.election.revised(rev, ev, now)
		key := string(ev.Kv.Key)
		switch name, field, ok := splitKey(key); {
		case strings.HasPrefix(key, released):
			unlocked[string(ev.Kv.Value)] = true
		case ok && ev.Type == mvccpb.DELETE && field == "uuid":
			gone[name] = true
		}
	}
	for _, ev := range events {
		name, field, ok := splitKey(string(ev.Kv.Key))
		switch {
		case !ok:
		case ev.Type == mvccpb.PUT:
			r.put(name, field, ev, now)
		case !gone[name]:
			r.world.violate("S4: revision %d deletes %s, but not the lock", rev, ev.Kv.Key)
		default:
			delete(r.locks[name].keys, field)
		}
	}
	for name := range gone {
		h := r.locks[name]
		h.lifetime.ended, h.lifetime.end, h.lifetime.forced = now, rev, !unlocked[h.uuid]
		for field := range h.keys {
			r.world.violate("S4: revision %d removes lock %s and leaves %s", rev, name, field)
		}
		delete(r.locks, name)
	}
}

func (r *replay) put(name, field string, ev *clientv3.Event, now time.Time) {
	h := r.locks[name]
	switch {
	case field == "uuid" && ev.IsCreate():
		h = &heldLock{keys: map[string]*mvccpb.KeyValue{}, lifetime: &lifetime{name: name, uuid: string(ev.Kv.Value), token: ev.Kv.ModRevision, created: now}}
		if old := r.locks[name]; old != nil {
			h.keys = old.keys
		}
		r.locks[name] = h
		r.lifetimes = append(r.lifetimes, h.lifetime)
	case h == nil:
		// The keys come in the order of the transaction, with uuid first.
		r.world.violate("the hunt itself, or S5: %s is put without a lock", ev.Kv.Key)
		return
	}
	h.keys[field] = ev.Kv
	h.written, h.newest = now, ev.Kv.ModRevision
	if field == "auto_unlock_at" {
		at, err := strconv.ParseFloat(string(ev.Kv.Value), 64)
		if err != nil {
			r.world.violate("the hunt itself: %s", err)
		}
		h.autoUnlock, h.dated = at, now
	}
}

// splitKey returns the name and the field of a key under the prefix.
func splitKey(key string) (name, field string, ok bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return "", "", false
	}
	i := strings.LastIndexByte(rest, '/')
	return rest[:max(i, 0)], rest[i+1:], true
}
