package admin

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Watch is a list of locks that Run keeps current. Its memory depends on the number of locks
// only: changes of one lock that nobody has asked for yet are one.
type Watch struct {
	admin   *Admin
	filter  Filter
	changed chan struct{}

	mu    sync.Mutex
	locks map[string]*watched
	// queue are the locks that changed since the last Changes, in the order of their first change.
	queue []*watched
	// next is the next time at which the state of a lock may change, if no key does.
	next     protocol.Timestamp
	trouble  error
	troubled time.Time
}

// watched is a lock, and what was last passed on of it.
type watched struct {
	protocol.Lock
	// whole is the lock before its first key was deleted since it was passed on.
	whole  *protocol.Lock
	queued bool
	// shown is the state that was passed on; NumStates if the lock was not, or is not in the
	// list any more.
	shown protocol.State
}

// Watch returns a list of the locks that match the filter, which is empty until Run is called.
func (a *Admin) Watch(f Filter) *Watch {
	return &Watch{admin: a, filter: f, changed: make(chan struct{}, 1), next: math.MaxInt64}
}

// Changed is ready when something has changed since the last Changes or View. What changes with time alone
// does not make it ready.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

func (w *Watch) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Trouble returns why the list may be out of date, and since when; nil if it is not.
func (w *Watch) Trouble() (since time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.troubled, w.trouble
}

func (w *Watch) setTrouble(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble == nil {
		w.troubled = w.admin.now()
	}
	w.trouble = err
	w.notify()
}

// Change is a lock that has changed.
type Change struct {
	api.Lock
	// Matches reports whether the lock is in the list. Gone reports whether it does not exist any more;
	// then the rest is what was known before.
	Matches, Gone bool
}

// Changes returns the changes since the last call, those of states by time included. The first
// call returns all locks of the list, in the order of the filter.
func (w *Watch) Changes() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.admin.now().UTC()
	now := protocol.TimestampOf(at)
	w.queueByTime(now)
	var changes []Change
	for _, k := range w.queue {
		gone := k.Keys <= 0
		matches := !gone && w.filter.wants(&k.Lock, now)
		if matches || k.shown != protocol.NumStates {
			l := &k.Lock
			if gone && k.whole != nil {
				l = k.whole
			}
			changes = append(changes, Change{Lock: api.NewLock(l, at, 0), Matches: matches, Gone: gone})
		}
		if k.shown = protocol.NumStates; matches {
			k.shown = k.State(now)
		}
		if gone {
			delete(w.locks, k.Name)
		}
	}
	w.forget()
	return changes
}

// forget empties the queue.
func (w *Watch) forget() {
	for _, k := range w.queue {
		k.queued, k.whole = false, nil
	}
	clear(w.queue)
	w.queue = w.queue[:0]
}

// queueByTime queues the locks whose state has changed since it was passed on.
func (w *Watch) queueByTime(now protocol.Timestamp) {
	if now < w.next {
		return
	}
	w.next = math.MaxInt64
	for _, k := range w.locks {
		w.awaits(k, now)
		if state := k.State(now); state != k.shown && (k.shown != protocol.NumStates || w.filter.wants(&k.Lock, now)) {
			w.enqueue(k)
		}
	}
}

// awaits notes when the state of a lock changes next.
func (w *Watch) awaits(k *watched, now protocol.Timestamp) {
	for _, t := range []protocol.Timestamp{k.AlertAt(), k.AutoUnlockAt()} {
		if t > now {
			w.next = min(w.next, t)
		}
	}
}

func (w *Watch) enqueue(k *watched) {
	if !k.queued {
		k.queued = true
		w.queue = append(w.queue, k)
	}
}

// View is what a screen shows of a list.
type View struct {
	At     time.Time
	Prefix string
	// Sort is the order, one of Orders.
	Sort string
	// Total counts the locks whose names match, and Matched those that match the whole filter.
	// States counts the latter by state.
	Total, Matched int
	States         [protocol.NumStates]int
	// Locks are the first of those that match.
	Locks []api.Lock
	// Trouble is why all this may be out of date, and Since since when; nil if it is not.
	Trouble error
	Since   time.Time
}

// View returns the first n locks of the list. It takes one pass over all locks.
func (w *Watch) View(n int) View {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := View{At: w.admin.now().UTC(), Prefix: w.admin.Prefix(), Sort: cmp.Or(w.filter.Sort, Orders()[0]), Total: len(w.locks),
		Trouble: w.trouble, Since: w.troubled}
	now := protocol.TimestampOf(v.At)
	w.forget()
	first := best{n: max(n, 1), compare: compareBy(w.filter.Sort, now)}
	for name, k := range w.locks {
		if k.Keys <= 0 {
			delete(w.locks, name)
			v.Total--
			continue
		}
		if w.filter.wants(&k.Lock, now) {
			v.Matched++
			v.States[k.State(now)]++
			first.add(&k.Lock)
		}
	}
	for _, k := range first.all() {
		v.Locks = append(v.Locks, api.NewLock(k, v.At, 0))
	}
	return v
}

// best keeps the first n of many locks, in memory for 2n.
type best struct {
	n       int
	compare func(a, b *protocol.Lock) int
	kept    []*protocol.Lock
	sorted  bool
}

func (b *best) add(l *protocol.Lock) {
	if b.sorted && b.compare(l, b.kept[b.n-1]) >= 0 {
		return
	}
	if b.kept = append(b.kept, l); len(b.kept) == 2*b.n {
		b.kept, b.sorted = b.all(), true
	}
}

func (b *best) all() []*protocol.Lock {
	slices.SortFunc(b.kept, b.compare)
	return b.kept[:min(b.n, len(b.kept))]
}

// replace makes a listing the list.
func (w *Watch) replace(listed map[string]*watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := w.locks == nil
	now := protocol.TimestampOf(w.admin.now())
	for name, known := range w.locks {
		switch l := listed[name]; {
		case l == nil:
			known.Keys = 0
			listed[name] = known
			w.enqueue(known)
		case l.Revision == known.Revision && l.Token == known.Token && l.Keys == known.Keys:
			listed[name] = known
		default:
			known.Lock = l.Lock
			listed[name] = known
			w.enqueue(known)
		}
	}
	for _, k := range listed {
		if k.shown == protocol.NumStates {
			w.enqueue(k)
		}
		w.awaits(k, now)
	}
	w.locks, w.trouble = listed, nil
	if first {
		compare := compareBy(w.filter.Sort, now)
		slices.SortFunc(w.queue, func(a, b *watched) int { return compare(&a.Lock, &b.Lock) })
	}
	w.notify()
}

// Run keeps the list current until ctx is done, and then returns nil. It returns an error only
// if the first listing fails.
func (w *Watch) Run(ctx context.Context) error {
	return (&follower{Watch: w}).run(ctx)
}
