package mutex

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// A waiter that sees the release waits for a random part of its window before it tries
	// to take the lock, and does not try if it sees meanwhile that another has taken it. The
	// window doubles when it tries in vain, and shrinks when it need not try.
	firstWindow, longestWindow = 20 * time.Millisecond, 640 * time.Millisecond
	// A client that locks what it has released within politeAfter is such a waiter from the
	// beginning: without that it would always be faster than those who wait for its release.
	// It need not be where it has held the lock for less than politeHold, so that short work
	// on an uncontended lock costs nothing more.
	politeAfter, politeHold = 50 * time.Millisecond, 20 * time.Millisecond
	// silence is after how long a watch that says nothing is asked whether it lives, and
	// silenceAnswer how long that may take.
	silence       = time.Minute
	silenceAnswer = 10 * time.Second
	// lastCall is how long before its deadline a waiter tries once more if another has
	// taken the lock since the last time: it may be free, and the error says who holds it.
	lastCall = 200 * time.Millisecond
)

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// waiter waits for one lock.
type waiter struct {
	cl     *claim
	watch  clientv3.WatchChan
	stream context.Context // of the watch
	cancel context.CancelFunc
	broken int  // watches that failed in sequence
	stale  bool // the lock was released since its record was read
	last   bool // this attempt is the last call
	window time.Duration
	free   <-chan time.Time // when to try, nil while the lock is held
}

// await takes the lock when it becomes free.
func (c *Client) await(ctx context.Context, cl *claim) error {
	w := waiter{cl: cl, cancel: func() {}, window: firstWindow}
	defer func() { w.cancel() }()
	if revision, ok := c.recent.get(cl.name); ok {
		cl.revision, w.free = revision, time.After(rand.N(w.window))
		if cl.err = w.wait(ctx); cl.err != nil {
			return cl.failure(nil)
		}
	}
	for first := true; ; first = false {
		// Of many waiters that try at a release only those read the record that need it.
		if w.stale && !w.last && cl.set.identity == "" {
			c.settle(ctx, cl.set, []*claim{cl})
		} else {
			c.take(ctx, cl.set, cl)
			w.stale, w.last = false, false
		}
		if cl.lock != nil || cl.err != nil {
			return cl.failure(nil)
		}
		if first {
			cl.set.observers.emit(Event{Kind: EventWaiting, Name: cl.name, UUID: cl.uuid, Context: ctx, Err: cl.failure(nil)})
		}
		if err := w.wait(ctx); err != nil {
			return cl.failure(err)
		}
	}
}

// open begins to watch after the revision of the failed attempt: not at it, since etcd serves
// a watch of a revision that it already has only every 100 ms. After a failure it takes
// another stream, since one whose login has expired serves no new watches.
func (w *waiter) open(ctx context.Context) {
	if w.broken > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "unlocker-stream", w.cl.uuid)
	}
	w.stream, w.cancel = context.WithCancel(clientv3.WithRequireLeader(ctx))
	c := w.cl.c
	w.watch = c.watcher.Watch(w.stream, c.store.key(w.cl.name, protocol.FieldUUID), clientv3.WithRev(w.cl.revision+1))
}

func (w *waiter) close() {
	w.cancel()
	w.watch, w.cancel = nil, func() {}
}

// wait returns nil when the lock may be free.
func (w *waiter) wait(ctx context.Context) error {
	if w.watch == nil {
		w.open(ctx)
	}
	var last <-chan time.Time
	if end, ok := ctx.Deadline(); ok {
		last = time.After(time.Until(end) - lastCall)
	}
	quiet := time.NewTimer(jitter(silence))
	defer quiet.Stop()
	asked := false
	for {
		select {
		case resp, ok := <-w.watch:
			if !ok || resp.Err() != nil {
				w.close()
				return w.pause(ctx)
			}
			w.broken, asked = 0, false
			quiet.Reset(jitter(silence))
			if w.sees(resp.Events) {
				return nil
			}
		case <-w.free:
			w.free = nil
			w.window = min(2*w.window, longestWindow)
			return nil
		case <-last:
			if last = nil; w.stale {
				w.last = true
				return nil
			}
		case <-quiet.C:
			if asked {
				w.close()
				return w.pause(ctx)
			}
			asked = true
			_ = w.cl.c.watcher.RequestProgress(w.stream)
			quiet.Reset(silenceAnswer)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sees notes what the watch shows, and reports whether an attempt that was not answered has taken
// the lock.
func (w *waiter) sees(events []*clientv3.Event) (taken bool) {
	for _, ev := range events {
		switch {
		case ev.Kv.ModRevision <= w.cl.revision:
		case ev.Type == clientv3.EventTypeDelete:
			w.stale = true
			w.free = time.After(rand.N(w.window))
		case string(ev.Kv.Value) == w.cl.uuid:
			return true
		default:
			if w.free != nil {
				w.window = max(w.window*9/10, firstWindow)
			}
			w.free, w.stale = nil, true
			w.cl.holder = Holder{UUID: string(ev.Kv.Value), Token: ev.Kv.CreateRevision}
		}
	}
	return false
}

// recent are the locks that a client has released a moment ago, with the revisions.
type recent struct {
	mu    sync.Mutex
	locks map[string]int64
}

func (r *recent) add(name string, revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.locks == nil {
		r.locks = map[string]int64{}
	}
	r.locks[name] = revision
	time.AfterFunc(politeAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.locks[name] == revision {
			delete(r.locks, name)
		}
	})
}

func (r *recent) get(name string) (revision int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	revision, ok = r.locks[name]
	return revision, ok
}

// pause waits before the lock is tried again after a watch broke.
func (w *waiter) pause(ctx context.Context) error {
	w.broken++
	return rest(ctx, jitter(min(firstPause<<min(w.broken, 10), longestPause)))
}

// evict releases the lock of an earlier process of the same identity, and reports whether it
// did. Its further fields are those under its name.
func (c *Client) evict(ctx context.Context, cl *claim) bool {
	from, end := c.store.layout.Range(cl.name)
	reading, cancel := context.WithTimeout(ctx, cl.set.timeout())
	defer cancel()
	resp, err := c.store.kv.Get(reading, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(maxTxnOps-20))
	if err != nil {
		cl.err = fmt.Errorf("read its keys: %w", err)
		return false
	}
	fields := cl.written()
	for f := protocol.FieldUnknown + 1; f <= protocol.FieldUUID; f++ {
		fields[f.String()] = ""
	}
	for _, kv := range resp.Kvs {
		if name, field, valid := c.store.layout.Split(kv.Key); valid && string(name) == cl.name {
			fields[string(field)] = ""
		}
	}
	r := &release{c: c, name: cl.name, uuid: cl.holder.UUID, fields: sorted(fields)}
	c.store.settle(ctx, cl.set.timeout(), r)
	cl.err = r.err
	return cl.err == nil
}
