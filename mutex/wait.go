package mutex

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	// passAfter is how long the second in the queue sees the lock free before it passes over the first, and
	// lookAfter how long before it looks whether there still is a first.
	passAfter, lookAfter = time.Second, 50 * time.Millisecond
	// A client that may not put tickets does without for plainFor. Its waiters try up to scatter after a release.
	plainFor, scatter = time.Minute, 200 * time.Millisecond
	// silence is after how long without events a waiter looks, and lastCall how long before its deadline it reads again
	// who holds the lock.
	silence, lastCall = time.Minute, 200 * time.Millisecond
)

func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// waiter waits for one lock, or for one slot of several. It acts on what its claim knows of the lock and the queue as
// of a revision, watches one key, and reads again what the events do not say.
type waiter struct {
	c     *Client
	cl    *claim
	lease *lease // nil for none

	watcher clientv3.Watcher
	stop    func() // ends the watcher
	watch   clientv3.WatchChan
	key     string // that is watched
	cancel  context.CancelFunc
	before  context.CancelFunc // of the watch before
	broken  int                // watches that failed in sequence
	pause   <-chan time.Time   // after such a failure: until it fires, none is opened
	quiet   <-chan time.Time   // fires when they have shown nothing for long

	freed  time.Time // since when the lock is free, and head the first
	head   string
	looked bool // since freed
	timer  <-chan time.Time
	act    func(context.Context) // when the timer fires
}

// await takes the lock when it becomes free.
func (c *Client) await(ctx context.Context, cl *claim) error {
	w := &waiter{c: c, cl: cl, cancel: func() {}, before: func() {}}
	w.watcher, w.stop = c.store.outage.watcher()
	defer func() {
		go w.end()
		w.lease.leave()
	}()
	if cl.set.identity != "" { // its own lock it takes again without a ticket
		cl.fair = true
		if c.take(ctx, cl.set, cl); code(cl.err) == codes.PermissionDenied { // of tickets, perhaps
			cl.fair = false
			c.take(ctx, cl.set, cl)
		}
		if cl.lock != nil {
			return nil
		}
	}
	if w.try(ctx); cl.lock != nil || cl.err != nil {
		return cl.failure(nil)
	}
	if !cl.fair {
		c.describe(ctx, cl.set, cl)
	}
	cl.set.observers.emit(Event{Kind: EventWaiting, Name: cl.base, UUID: cl.uuid, Context: ctx, Err: cl.failure(nil)})
	var last <-chan time.Time
	if end, ok := ctx.Deadline(); ok {
		last = time.After(time.Until(end) - lastCall)
	}
	for cl.lock == nil && cl.err == nil {
		if ctx.Err() != nil {
			return cl.failure(context.Cause(ctx))
		}
		w.open(ctx)
		w.plan()
		if w.quiet == nil {
			w.quiet = time.After(jitter(silence))
		}
		var lost <-chan struct{}
		if cl.ticket != 0 {
			lost = w.lease.lost.Done()
		}
		select {
		case resp, ok := <-w.watch:
			if ok && resp.Err() == nil {
				w.see(ctx, resp)
			} else {
				w.close()
				w.pause = time.After(jitter(min(firstPause<<min(w.broken, 10), longestPause)))
			}
		case <-w.pause:
			w.pause = nil
			w.look(ctx)
		case <-w.quiet:
			w.quiet = nil
			free, holder := slices.Clone(cl.free), cl.holder.UUID
			if w.look(ctx); !slices.Equal(cl.free, free) || cl.holder.UUID != holder { // which the watch has not shown
				w.close()
			}
		case <-w.timer:
			w.act(ctx)
		case <-lost:
			w.try(ctx)
		case <-last:
			last = nil
			c.describe(ctx, cl.set, cl)
		case <-ctx.Done():
		}
	}
	return cl.failure(nil)
}

// try takes the lock, if it is free and the waiter's turn. Without a ticket it queues otherwise.
func (w *waiter) try(ctx context.Context) {
	cl := w.cl
	for wanted := w.lease != nil; ; wanted = true {
		if cl.ticket == 0 || w.lease.lost.Err() != nil {
			cl.place = place{queued: cl.queued}
			w.join(ctx, wanted)
		}
		was := cl.ticket
		w.c.settle(ctx, cl.set, []*claim{cl})
		switch kind := code(cl.err); {
		case kind == codes.PermissionDenied && cl.fair:
			cl.ticket = 0
			w.unordered(cl.err)
		case kind == codes.NotFound && cl.lease != 0:
			w.lease.lose()
		case cl.err != nil || cl.lock != nil || !cl.fair:
			return
		case cl.ticket != 0:
			if cl.ticket != was && cl.ticket != cl.revision { // an attempt that was not answered has put it
				w.look(ctx)
			}
			return
		}
	}
}

// join gets a lease for the next attempt, if the client has one or one is wanted.
func (w *waiter) join(ctx context.Context, wanted bool) {
	cl := w.cl
	cl.fair = time.Now().UnixNano() >= w.c.plain.Load()
	w.lease.leave()
	w.lease = nil
	var err error
	if cl.fair {
		w.lease, err = w.c.leases.join(ctx, wanted)
	}
	switch {
	case w.lease != nil:
		cl.lease = w.lease.id
	case classify(err) != ambiguous:
		w.unordered(err)
	case err != nil:
		_ = rest(ctx, jitter(longestPause))
	}
}

// unordered makes the waits of the client do without tickets for a while.
func (w *waiter) unordered(err error) {
	w.c.plain.Store(time.Now().Add(plainFor).UnixNano())
	w.c.sayPlain.Do(func() {
		w.c.settings.observers.emit(Event{Kind: EventWaiting, Err: fmt.Errorf("no tickets under %s: %w", w.c.settings.waiters, err)})
	})
}

// look reads the holder and the place in the queue again.
func (w *waiter) look(ctx context.Context) {
	cl := w.cl
	if cl.ticket != 0 {
		p := &position{cl: cl}
		w.c.store.settle(ctx, cl.set.timeout(), p)
		if cl.err, w.looked = p.err, true; code(p.err) == codes.PermissionDenied {
			cl.ticket = 0
		}
	}
	if cl.ticket == 0 {
		w.try(ctx)
	}
}

// open watches the lock or all slots, if at most one is before this waiter, and otherwise the ticket two before its
// own. It begins now, and see looks if that is too late: etcd serves a watch of a revision that it already has only
// every 100 ms. After a failure it takes another stream, since one whose login has expired serves no new watches.
func (w *waiter) open(ctx context.Context) {
	key, opts := w.c.store.key(w.cl.name, protocol.FieldUUID), []clientv3.OpOption{clientv3.WithCreatedNotify()}
	if len(w.cl.before) > 1 {
		key = w.cl.before[1]
	} else if len(w.cl.names) > 1 {
		from, end := w.c.store.layout.Range(w.cl.base)
		key, opts = from, append(opts, clientv3.WithRange(end))
	}
	if w.pause != nil || w.watch != nil && key == w.key {
		return
	}
	w.before()
	if w.before = w.cancel; len(w.cl.before) > 1 { // the watch before is not that of a deleted ticket, and may have events
		w.cancel()
	}
	if w.broken > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, "unlocker-stream", w.cl.uuid)
	}
	ctx, w.cancel = context.WithCancel(clientv3.WithRequireLeader(ctx))
	w.key, w.watch = key, w.watcher.Watch(ctx, key, opts...)
}

// end ends both watches: those of a watcher of its own with its stream, in one message.
func (w *waiter) end() {
	w.stop()
	w.before()
	w.cancel()
}

func (w *waiter) close() {
	w.cancel()
	w.watch = nil
	w.broken++
}

// see notes what the watch shows, and looks where that does not say enough.
func (w *waiter) see(ctx context.Context, resp clientv3.WatchResponse) {
	cl, act := w.cl, func(context.Context) {}
	if w.broken = 0; resp.Created && resp.Header.Revision > cl.revision && (len(cl.free) == 0 || len(cl.before) != 1) {
		act = w.look // the second does so anyway
	}
	for _, ev := range resp.Events {
		name, field, _ := cl.c.store.layout.Split(ev.Kv.Key)
		switch {
		case ev.Kv.ModRevision <= cl.revision:
			continue
		case len(cl.before) > 1: // it is the second now, if that has taken the lock, which the first is to take next
			if cl.before, cl.free = cl.before[:1], []string{cl.name}; len(cl.names) > 1 {
				cl.free = nil // not known until the next watch begins
			}
		case protocol.ParseField(field) != protocol.FieldUUID || !slices.Contains(cl.names, string(name)):
			continue
		case ev.Type == clientv3.EventTypeDelete:
			cl.saw(string(name), Holder{})
		case !cl.saw(string(name), Holder{UUID: string(ev.Kv.Value), Token: ev.Kv.CreateRevision}):
			act = w.look // it may have been passed over
		}
		w.quiet = nil
	}
	act(ctx)
}

// plan sets the timer for what is to be done as things are. The first takes a lock that is free. If it does not, the
// second does, or any that has found that out.
func (w *waiter) plan() {
	cl := w.cl
	if w.timer, cl.over = nil, ""; len(cl.free) == 0 {
		w.freed = time.Time{}
		return
	}
	if w.freed.IsZero() || cl.head() != w.head {
		w.freed, w.head, w.looked = time.Now(), cl.head(), false
	}
	after := passAfter
	switch w.act = w.look; {
	case cl.ticket == 0:
		after, w.act = rand.N(scatter), w.try
	case cl.head() == "":
		after, w.act = 0, w.try
	case w.looked:
		cl.over = cl.head()
		w.act = func(ctx context.Context) {
			w.try(ctx)
			w.freed = time.Time{} // if another has passed it over, what is known is of before
		}
	case len(cl.before) == 1:
		after = lookAfter
	}
	w.timer = time.After(time.Until(w.freed.Add(after)))
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
