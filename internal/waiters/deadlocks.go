package waiters

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Holder returns the uuid of a lock, "" if it is free, and when it is due, if that is known.
type Holder func(ctx context.Context, lock string) (uuid string, due time.Time)

// flow is a flow of work that waits and holds locks, by its ticket. It needs one of the first locks of its queue. seen is the
// pass in which cycles have seen it, or -1 if it proceeds, as one of these may be released.
type flow struct {
	api.DeadlockFlow
	*queue
	seen int
}

// queue has the uuids of the locks that flows need one of, up to the first that none of all holds.
type queue struct {
	flows []*flow
	uuids []string
	free  bool // the last of them is
}

// lock returns the lock that it waits for, or one of its slots.
func (f *flow) lock(slot int) string {
	return f.Lock + strings.Repeat("/"+strconv.Itoa(slot), min(f.Slots, 1))
}

// flows returns those that hold locks while they wait: without them there is no deadlock.
func (w *Waiters) flows() (all []*flow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, queue := range w.queues {
		for _, waiter := range queue {
			if len(waiter.Holds) > 0 {
				all = append(all, &flow{DeadlockFlow: api.DeadlockFlow{Lock: name, Waiter: *waiter}})
			}
		}
	}
	slices.SortFunc(all, func(f, g *flow) int { return cmp.Or(cmp.Compare(f.Revision, g.Revision), cmp.Compare(f.Key, g.Key)) })
	return all
}

// deadlocks returns a deadlock for each cycle of flows that wait for each other: the cycle, and all that hold what it
// waits for. A flow proceeds if a lock that it needs is free, or held by no waiting flow, or by one that proceeds:
// such holders release in the end.
func deadlocks(ctx context.Context, all []*flow, holder Holder) (found []api.Deadlock) {
	type place struct {
		*queue
		slot int
	}
	holders, places, queues := make(map[string][]*flow), make(map[string][]place), make(map[string]*queue)
	locks, dues, free := make(map[string]string), make(map[string]time.Time), []place(nil)
	for _, f := range all {
		for _, u := range f.Holds {
			holders[u] = append(holders[u], f)
		}
	}
	for _, f := range all {
		name := f.Lock + strings.Repeat("/", min(f.Slots, 1))
		q := cmp.Or(queues[name], &queue{})
		queues[name], f.queue, q.flows = q, q, append(q.flows, f)
		for slot := len(q.uuids); !q.free && slot < max(f.Slots, 1); slot++ {
			lock := f.lock(slot)
			u, due := holder(ctx, lock)
			if q.free = len(holders[u]) == 0 || cmp.Or(locks[u], lock) != lock; q.free { // another lock with its uuid is forged
				free = append(free, place{q, slot})
			}
			q.uuids, places[u], locks[u], dues[u] = append(q.uuids, u), append(places[u], place{q, slot}), cmp.Or(locks[u], lock), due
		}
	}
	for ; len(free) > 0; free = free[1:] {
		for _, f := range free[0].flows {
			if f.seen == 0 && free[0].slot < max(f.Slots, 1) {
				f.seen = -1
				for _, u := range f.Holds {
					free = append(free, places[u]...)
					delete(places, u)
				}
			}
		}
	}
	for i, f := range all {
		for ; f.seen == 0; f = holders[f.uuids[0]][0] {
			f.seen = i + 1
		}
		if f.seen != i+1 || len(found) == maxDeadlocks {
			continue // not in a cycle, or in one that was found, or too many
		}
		var d api.Deadlock
		set, in, read := []*flow{f}, map[*flow]bool{f: true}, make(map[*queue]int)
		for next := 0; next < len(set); next++ {
			for q := set[next].queue; read[q] < max(set[next].Slots, 1); read[q]++ {
				u := q.uuids[read[q]]
				if due := dues[u]; !due.IsZero() && (d.Due.IsZero() || due.Before(d.Due)) {
					d.Due = due
				}
				for _, g := range holders[u] {
					if !in[g] {
						in[g], set = true, append(set, g)
					}
				}
			}
			shown := set[next].DeadlockFlow
			shown.Lock, shown.Holds = protocol.Clip([]byte(shown.Lock), protocol.MaxName), nil
			for _, u := range set[next].Holds {
				if locks[u] != "" && len(shown.Held) < maxHeld {
					shown.Held = append(shown.Held, protocol.Clip([]byte(locks[u]), protocol.MaxName))
				}
			}
			if d.More = max(0, next+1-maxFlows); d.More == 0 {
				d.Flows = append(d.Flows, shown)
			}
		}
		found = append(found, d)
	}
	return found
}

const (
	// maxDeadlocks is how many are found, maxFlows how many flows of each are shown, maxHeld how many locks of each.
	maxDeadlocks, maxFlows, maxHeld = 100, 20, 8
	// maxGets is how many locks are read at a time: etcd's default limit of a transaction.
	maxGets = 128
	// lookInterval is the minimum time between two looks for deadlocks, which is also lookShare times as long as one takes.
	lookInterval, lookShare = time.Second, 20
)

// ReadDeadlocks returns the deadlocks that tickets and locks show at one revision of etcd. It takes no longer than the timeout,
// and reads with each lock those that are likely to be next: of other waiters, or further slots.
func ReadDeadlocks(ctx context.Context, kv clientv3.KV, layout protocol.Layout, prefix string, timeout time.Duration) ([]api.Deadlock, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	w, err := Read(ctx, kv, prefix, timeout)
	rest, uuids := w.flows(), make(map[string]string) // of what was read, by its key
	found := deadlocks(ctx, rest, func(ctx context.Context, lock string) (uuid string, due time.Time) {
		var gets []clientv3.Op
		get := func(lock string) string {
			key := layout.Key(lock, protocol.FieldUUID.String())
			if _, read := uuids[key]; !read && len(gets) < maxGets {
				uuids[key], gets = "", append(gets, clientv3.OpGet(key, clientv3.WithRev(w.revision)))
			}
			return uuids[key]
		}
		if get(lock); len(gets) == 0 || err != nil {
			return get(lock), due
		}
		for ; len(rest) > 0 && len(gets) < maxGets; rest = rest[1:] {
			get(rest[0].lock(0))
		}
		i := strings.LastIndexByte(lock, '/') + 1
		for slot, err := strconv.Atoi(lock[i:]); err == nil && len(gets) < maxGets; slot++ {
			get(lock[:i] + strconv.Itoa(slot))
		}
		resp, failed := kv.Txn(ctx).Then(gets...).Commit()
		if err = failed; err == nil {
			for _, r := range resp.Responses {
				for _, kv := range r.GetResponseRange().Kvs {
					uuids[string(kv.Key)] = string(kv.Value)
				}
			}
		}
		return get(lock), due
	})
	return found, err
}

// RunDeadlocks looks for deadlocks until ctx is done, and then returns nil. What the daemon follows may be locks and tickets of
// different revisions: a deadlock that was not found before is confirmed by a read at one.
func (w *Waiters) RunDeadlocks(ctx context.Context) error {
	for began := time.Now(); ; began = time.Now() {
		before := w.Deadlocks()
		found, confirmed := deadlocks(ctx, w.flows(), w.options.Holder), before
		if slices.ContainsFunc(found, func(d api.Deadlock) bool { return !among(before, d) }) {
			// The error is only that there may be more: a lock that was not read is taken for free.
			read, _ := ReadDeadlocks(ctx, w.options.Client, w.options.Layout, w.options.Prefix, w.options.RequestTimeout)
			confirmed = slices.Concat(before, read)
		}
		found = slices.DeleteFunc(found, func(d api.Deadlock) bool { return !among(confirmed, d) })
		for _, d := range found {
			if !among(before, d) {
				w.options.Logger.Warn(api.LogDeadlock, "flows", d.String())
			}
		}
		w.mu.Lock()
		w.deadlocks = found
		w.mu.Unlock()
		select {
		case <-time.After(max(lookInterval, lookShare*time.Since(began))):
		case <-ctx.Done():
			return nil
		}
	}
}

// among reports whether a deadlock is among others: one of the same tickets.
func among(all []api.Deadlock, d api.Deadlock) bool {
	return slices.ContainsFunc(all, func(other api.Deadlock) bool {
		return slices.EqualFunc(d.Flows, other.Flows, func(f, g api.DeadlockFlow) bool { return f.Key == g.Key && f.Revision == g.Revision })
	})
}

// Deadlocks returns those that were confirmed.
func (w *Waiters) Deadlocks() []api.Deadlock {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deadlocks
}
