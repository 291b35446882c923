//go:build hunt

package hunt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// released is the prefix of the keys to which holders write the uuid of a lock in the
// transaction that unlocks it. Every other deletion was made by a daemon.
const released = "/hunt/released/"

// requestTimeout is how long a holder waits for an answer of etcd.
const requestTimeout = 400 * time.Millisecond

// holder acquires one lock after another.
type holder struct {
	world  *world
	group  *group
	client *clientv3.Client
	id     int
	rand   *rand.Rand
	clock  *clock
	count  int // the number of acquisitions
}

func newHolder(w *world, g *group, client *clientv3.Client, id int) *holder {
	h := &holder{world: w, group: g, client: client, id: id, rand: w.rand(uint64(1000 + id))}
	h.clock = &clock{steps: []step{{ahead: h.offset()}}}
	return h
}

// offset returns how far the clock of a holder may be ahead.
func (h *holder) offset() time.Duration {
	switch n := h.rand.IntN(100); {
	case n < 20:
		return -between(h.rand, time.Second, 20*time.Second)
	case n < 30:
		return between(h.rand, 500*time.Millisecond, 3*time.Second)
	}
	return between(h.rand, 0, 600*time.Millisecond) - 300*time.Millisecond
}

// stepClock sets the clock of the holder once in a while.
func (h *holder) stepClock() {
	if h.rand.IntN(30) == 0 {
		_ = h.clock.set(h.offset()) // only a clock with a file has errors
	}
}

// acquisition is one lock that a holder tries to acquire, and what it does with it.
type acquisition struct {
	*holder
	name, uuid string
	span       time.Duration
	token      int64
	first      time.Time // when the first request to lock was sent
	releasing  time.Time // when the first request to unlock was sent

	mu      sync.Mutex
	stopped time.Time // when the holder stopped to renew
	signed  time.Time // when the last request was sent that locked or renewed it
}

// sign records the sending of a request that locked or renewed the lock.
func (l *acquisition) sign(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signed = sent
}

// interval is the time between two renewals.
func (l *acquisition) interval() time.Duration { return l.span / 4 }

func (l *acquisition) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped.IsZero() {
		l.stopped = time.Now()
	}
}

func (l *acquisition) stoppedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped
}

// lives reports whether the holder had not stopped to renew at an instant.
func (l *acquisition) lives(at time.Time) bool {
	stopped := l.stoppedAt()
	return stopped.IsZero() || stopped.After(at)
}

func (h *holder) run(ctx context.Context) {
	for ctx.Err() == nil {
		name := lockName(h.rand.IntN(names))
		for again := true; again && ctx.Err() == nil; {
			again = h.acquire(ctx, name)
		}
		pause(ctx, between(h.rand, 20*time.Millisecond, 600*time.Millisecond))
	}
}

// lockName nests every third name in the one before it.
func lockName(n int) string {
	if n%3 == 2 {
		return fmt.Sprintf("job-%03d/sub", n-1)
	}
	return fmt.Sprintf("job-%03d", n)
}

// acquire acquires a lock once, and renews, unlocks or abandons it at random. It reports
// whether to acquire the same lock again at once.
func (h *holder) acquire(ctx context.Context, name string) (again bool) {
	h.count++
	l := &acquisition{holder: h, name: name, uuid: fmt.Sprintf("%d-%d", h.id, h.count), first: time.Now(),
		span: between(h.rand, 2*time.Second, 4*time.Second)}
	h.stepClock()
	fate, hold := h.rand.IntN(100), between(h.rand, 20*time.Millisecond, 500*time.Millisecond)
	long := between(h.rand, 2*time.Second, 9*time.Second)
	switch {
	case fate >= 95: // its patience ends within the settle of a new daemon
		l.span = between(h.rand, 50*time.Millisecond, 500*time.Millisecond)
	case fate >= 90: // it is due long after an outage
		l.span = between(h.rand, 5*time.Second, 9*time.Second)
	}
	h.world.registry.add(l)
	defer l.stop()
	if !l.lock() {
		return false
	}
	switch {
	case fate < 55: // short
		pause(ctx, hold)
		l.stop()
		l.unlock()
	case fate < 67: // long
		if l.renewFor(ctx, long) {
			l.stop()
			l.unlock()
		}
	case fate < 75: // short, and again
		pause(ctx, hold)
		l.stop()
		return l.unlock()
	case fate < 81: // dies, but writes to the lock when it is due
		l.stop()
		l.writeAtDue(ctx)
	case fate < 86: // dies later
		l.renewFor(ctx, long/2)
	default: // dies at once
		h.stepClock()
	}
	return false
}

func (l *acquisition) key(field string) string { return prefix + l.name + "/" + field }

// stamp formats a time of the holder's clock as the protocol does.
func (l *acquisition) stamp(at time.Time) string {
	return etcdtest.Stamp(at.Add(l.clock.ahead()))
}

func (l *acquisition) txn(compare clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	return l.client.Txn(ctx).If(compare).Then(then...).Else(otherwise...).Commit()
}

func (l *acquisition) isHeld() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(l.key("uuid")), "=", l.uuid)
}

// lock retries up to five times if the outcome is unknown.
func (l *acquisition) lock() bool {
	for range 6 {
		call := time.Now()
		resp, err := l.txn(clientv3.Compare(clientv3.Version(l.key("uuid")), "=", 0), []clientv3.Op{
			clientv3.OpPut(l.key("uuid"), l.uuid),
			clientv3.OpPut(l.key("hostname"), fmt.Sprintf("host-%d", l.id)),
			clientv3.OpPut(l.key("locked_at"), l.stamp(call)),
			clientv3.OpPut(l.key("alert_at"), l.stamp(call.Add(l.span/2))),
			clientv3.OpPut(l.key("auto_unlock_at"), l.stamp(call.Add(l.span))),
			clientv3.OpPut(l.key("own-field"), "x"),
		}, clientv3.OpGet(l.key("uuid")))
		switch {
		case err != nil:
			pause(context.Background(), 30*time.Millisecond)
			continue
		case resp.Succeeded:
			l.token = resp.Header.Revision
			l.sign(call)
			l.world.registry.note(l.name, op{acquired, l.token, span{From: l.first, To: time.Now()}})
			return true
		}
		uuids := resp.Responses[0].GetResponseRange().Kvs
		if len(uuids) == 1 && string(uuids[0].Value) == l.uuid {
			l.token = uuids[0].CreateRevision
			l.sign(l.first)
			l.world.registry.note(l.name, op{acquired, l.token, span{From: l.first, To: time.Now()}})
			return true
		}
		if len(uuids) == 1 {
			l.world.registry.note(l.name, op{observed, uuids[0].CreateRevision, span{From: call, To: time.Now()}})
		}
		return false
	}
	return false
}

// renewFor renews the lock for d, and reports whether it is still held.
func (l *acquisition) renewFor(ctx context.Context, d time.Duration) bool {
	end, next := time.Now().Add(d), time.Now().Add(l.interval())
	for time.Now().Before(end) && ctx.Err() == nil {
		pause(ctx, min(time.Until(next), time.Until(end)))
		if time.Now().Before(next) {
			continue
		}
		call := time.Now()
		resp, err := l.txn(l.isHeld(), []clientv3.Op{
			clientv3.OpPut(l.key("alert_at"), l.stamp(call.Add(l.span/2))),
			clientv3.OpPut(l.key("auto_unlock_at"), l.stamp(call.Add(l.span))),
			clientv3.OpPut(l.key("alive_at"), l.stamp(call)),
		})
		if err != nil {
			next = time.Now().Add(30 * time.Millisecond)
			continue
		}
		kind := renewed
		if !resp.Succeeded {
			kind = lost
		}
		l.world.registry.note(l.name, op{kind, l.token, span{From: call, To: time.Now()}})
		if !resp.Succeeded {
			return false
		}
		l.sign(call)
		l.stepClock()
		next = call.Add(l.interval())
	}
	return true
}

// writeAtDue writes to the lock around the times when a leader and another daemon remove it,
// without renewing it. Between the writes the watch can catch up, so that a daemon reads the lock
// and then sends the removal of an older one.
func (l *acquisition) writeAtDue(ctx context.Context) {
	offset := l.clock.ahead()
	if offset < -tolerance {
		offset = 0
	}
	due := l.first.Add(l.span + grace + offset)
	for _, later := range []time.Duration{0, standby, standby + stormDelay} {
		pause(ctx, time.Until(due.Add(later-30*time.Millisecond)))
		for i := 0; time.Now().Before(due.Add(later+60*time.Millisecond)) && ctx.Err() == nil; i++ {
			if resp, err := l.txn(l.isHeld(), []clientv3.Op{clientv3.OpPut(l.key("own-field"), strconv.Itoa(i))}); err != nil || !resp.Succeeded {
				return
			}
			pause(ctx, 4*time.Millisecond)
		}
	}
}

// unlock retries up to five times if the outcome is unknown.
func (l *acquisition) unlock() bool {
	l.mu.Lock()
	l.releasing = time.Now()
	l.mu.Unlock()
	ops := []clientv3.Op{clientv3.OpPut(fmt.Sprintf("%s%d", released, l.id), l.uuid)}
	for _, f := range []string{"uuid", "hostname", "locked_at", "alert_at", "auto_unlock_at", "alive_at", "own-field"} {
		ops = append(ops, clientv3.OpDelete(l.key(f)))
	}
	for tries := 0; tries < 6; tries++ {
		call := time.Now()
		resp, err := l.txn(l.isHeld(), ops)
		if err != nil {
			pause(context.Background(), 30*time.Millisecond)
			continue
		}
		if resp.Succeeded {
			l.world.registry.released(resp.Header.Revision, span{From: call, To: time.Now()})
			return true
		}
		if tries == 0 {
			l.world.registry.note(l.name, op{lost, l.token, span{From: call, To: time.Now()}})
		}
		return false
	}
	return false
}
