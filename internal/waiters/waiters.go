// Package waiters has the tickets of those who wait for locks: as a daemon follows them, and as a command reads them.
//
// Guaranteed: nothing is written. Number and size of what is kept are limited, since any client may have written it;
// what is not kept is counted. A ticket whose value cannot be read waits like any other. Where etcd refuses the prefix,
// nobody is known to wait, and nothing else changes.
//
// Not guaranteed: that a waiter exists as its ticket describes it, nor that those who wait without one are seen.
package waiters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options are the options of New; all are required.
type Options struct {
	// FollowerOptions say how to follow the tickets: all of them but MaxKeys, MaxSize, On and Optional.
	etcd.FollowerOptions
	// Changed is called after each change. It must not block.
	Changed func()
	// WaitDuration observes how long tickets were seen that ended in a lock, in seconds.
	WaitDuration interface{ Observe(float64) }
	// Layout has the keys of the locks, and Holder what is known of them. Only RunDeadlocks uses them.
	Layout protocol.Layout
	Holder Holder
}

// Waiters are the tickets under a prefix. All methods may be called concurrently.
type Waiters struct {
	options  Options
	follower *etcd.Follower // nil after Read

	mu sync.Mutex
	// queues are the tickets by the names of locks, in the order in which they get it.
	queues map[string][]*api.Waiter
	// ends are the halves of the waits that have ended, until the other half comes.
	ends      map[end]time.Duration
	deadlocks []api.Deadlock
	// revision is that of Read.
	revision int64
}

// end is how a wait ends in a lock: in one revision the ticket is deleted, and the lock has its uuid.
type end struct {
	uuid     string
	revision int64
}

const (
	// MaxTickets is the maximum number of tickets that are kept.
	MaxTickets = 10_000
	// maxEnds is how many halves are kept: the other half is due within a moment, if there is one.
	maxEnds = 1000
	// readPage is how many tickets Read requests at a time: their values may be large.
	readPage = 8 * etcd.SmallPage
)

// New returns Waiters that know of none until Run is called.
func New(o Options) (w *Waiters, err error) {
	if o.Changed == nil || o.WaitDuration == nil {
		return nil, errors.New("waiters: Changed and WaitDuration are required")
	}
	w = &Waiters{options: o, queues: make(map[string][]*api.Waiter), ends: make(map[end]time.Duration)}
	o.MaxKeys, o.MaxSize, o.On, o.Optional = MaxTickets, protocol.MaxTicket+1, w.on, true // one more, so that what is cut is not read
	w.follower, err = etcd.NewFollower(o.FollowerOptions)
	return w, err
}

// Read returns the tickets that there are. If these are more than MaxTickets, it returns the first of them, and an error.
func Read(ctx context.Context, kv clientv3.KV, prefix string, timeout time.Duration) (*Waiters, error) {
	w, read := &Waiters{queues: make(map[string][]*api.Waiter)}, 0
	return w, etcd.Pages(ctx, kv, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, readPage, timeout, func(page *clientv3.GetResponse) error {
		if w.revision == 0 {
			w.revision = page.Header.Revision // the later pages are read at that, too
		}
		for _, kv := range page.Kvs {
			if read++; read > MaxTickets {
				return fmt.Errorf("more than %d tickets under %s: the others are not counted", MaxTickets, prefix)
			}
			w.put(string(kv.Key[len(prefix):]), kv.Value, kv.CreateRevision, time.Time{})
		}
		return nil
	})
}

// Run follows the tickets until ctx is done, and then returns nil.
func (w *Waiters) Run(ctx context.Context) error { return w.follower.Run(ctx) }

func (w *Waiters) on(e etcd.Event) {
	w.mu.Lock()
	defer w.options.Changed()
	defer w.mu.Unlock()
	now := time.Now().UTC()
	if !e.Deleted {
		w.put(e.Key, e.Value, e.Created, now)
	} else if gone := w.take(e.Key); gone != nil && e.Revision > 0 && !gone.Unreadable {
		w.meet(end{gone.UUID, e.Revision}, now.Sub(gone.Seen))
	}
}

// put keeps a ticket, and since when it was seen.
func (w *Waiters) put(key string, value []byte, created int64, seen time.Time) {
	name, ticket, valid := protocol.SplitTicket("", []byte(key))
	if !valid {
		return
	}
	parsed, err := protocol.ParseTicket(value)
	waiter := &api.Waiter{Ticket: parsed, Key: string(ticket), Revision: created, Seen: seen, Unreadable: err != nil}
	if was := w.take(key); was != nil && was.Revision == created {
		waiter.Seen = was.Seen
	}
	queue := w.queues[string(name)]
	i, _ := slices.BinarySearchFunc(queue, waiter, func(a, b *api.Waiter) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Key, b.Key))
	})
	w.queues[string(name)] = slices.Insert(queue, i, waiter)
}

// take removes a ticket, and returns it; nil if there is none.
func (w *Waiters) take(key string) *api.Waiter {
	name, ticket, _ := protocol.SplitTicket("", []byte(key))
	queue := w.queues[string(name)]
	i := slices.IndexFunc(queue, func(waiter *api.Waiter) bool { return waiter.Key == string(ticket) })
	if i < 0 {
		return nil
	}
	gone := queue[i]
	if w.queues[string(name)] = slices.Delete(queue, i, i+1); len(queue) == 1 {
		delete(w.queues, string(name))
	}
	return gone
}

// Acquired is to be called for each lock that was observed to be taken.
func (w *Waiters) Acquired(l *protocol.Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queues)+len(w.ends) > 0 { // else nobody has waited
		w.meet(end{l.UUID(), l.Token}, 0)
	}
}

// meet observes a wait once both halves of its end are known: the ticket, which was seen for some time, and the lock.
func (w *Waiters) meet(e end, seen time.Duration) {
	if other, met := w.ends[e]; met {
		delete(w.ends, e)
		w.options.WaitDuration.Observe(max(seen, other).Seconds())
		return
	}
	if len(w.ends) >= maxEnds {
		clear(w.ends)
	}
	w.ends[e] = seen
}

// of returns the queue of a lock: its own or, where it is a slot, that of its name.
func (w *Waiters) of(lock string) []*api.Waiter {
	if i := strings.LastIndexByte(lock, '/'); i > 0 {
		slot, err := strconv.ParseUint(lock[i+1:], 10, 16)
		named := w.queues[lock[:i]]
		if err == nil && slices.ContainsFunc(named, func(waiter *api.Waiter) bool { return waiter.Slots > int(slot) }) {
			return named
		}
	}
	return w.queues[lock]
}

// Count returns how many wait for a lock.
func (w *Waiters) Count(lock string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.of(lock))
}

// For returns the waiters of a lock, the first of them up to a limit, and why they may not be all.
func (w *Waiters) For(lock string, limit int) api.WaiterList {
	w.mu.Lock()
	defer w.mu.Unlock()
	queue := w.of(lock)
	list := api.WaiterList{Name: lock, Waiters: []api.Waiter{}, More: max(0, len(queue)-limit), Error: w.Unknown()}
	for _, waiter := range queue[:len(queue)-list.More] {
		list.Waiters = append(list.Waiters, *waiter)
	}
	return list
}

// Unknown returns why not all tickets are known.
func (w *Waiters) Unknown() string {
	if w.follower == nil {
		return ""
	}
	switch s := w.follower.Status(); {
	case !s.Synced && s.Err != nil:
		return api.ErrorText(s.Err)
	case !s.Synced:
		return "the tickets under " + w.options.Prefix + " are not loaded yet"
	case s.Omitted > 0:
		return fmt.Sprintf("of the tickets under %s, %d are too many or have very long keys", w.options.Prefix, s.Omitted)
	}
	return ""
}

// Stats are aggregates of the tickets.
type Stats struct {
	// Waiting counts all tickets. Oldest is since when the first of them was seen; zero if there is none.
	Waiting int
	Oldest  time.Time
	// Most are names with the most waiters, in descending order.
	Most []Count
	// Deadlocks counts those that were confirmed.
	Deadlocks int
}

// Count is how many wait for a name.
type Count struct {
	Name    string
	Waiters int
}

// Stats returns the aggregates, with up to limit names.
func (w *Waiters) Stats(limit int) Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Stats{Waiting: w.follower.Status().Omitted, Deadlocks: len(w.deadlocks)}
	for name, queue := range w.queues {
		s.Waiting += len(queue)
		s.Most = append(s.Most, Count{name, len(queue)})
		if first := queue[0].Seen; s.Oldest.IsZero() || first.Before(s.Oldest) {
			s.Oldest = first
		}
	}
	slices.SortFunc(s.Most, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Waiters, a.Waiters), strings.Compare(a.Name, b.Name))
	})
	s.Most = s.Most[:min(len(s.Most), limit)]
	return s
}
