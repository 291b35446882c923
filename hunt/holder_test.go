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
	// offset is how far its clock is ahead of the true one.
	offset time.Duration
	count  int // the number of acquisitions
}

func newHolder(w *world, g *group, client *clientv3.Client, id int) *holder {
	h := &holder{world: w, group: g, client: client, id: id, rand: w.rand(uint64(1000 + id))}
	switch n := h.rand.IntN(100); {
	case n < 20:
		h.offset = -between(h.rand, time.Second, 20*time.Second)
	case n < 30:
		h.offset = between(h.rand, 500*time.Millisecond, 3*time.Second)
	default:
		h.offset = between(h.rand, 0, 600*time.Millisecond) - 300*time.Millisecond
	}
	return h
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
}

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
	fate, hold := h.rand.IntN(100), between(h.rand, 20*time.Millisecond, 500*time.Millisecond)
	long := between(h.rand, 2*time.Second, 9*time.Second)
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
	case fate < 78: // dies, but writes to the lock when it is due
		l.stop()
		l.writeAtDue(ctx)
	case fate < 90: // dies at once
	default: // dies later
		l.renewFor(ctx, long/2)
	}
	return false
}

func (l *acquisition) key(field string) string { return prefix + l.name + "/" + field }

// stamp formats the time of the holder's clock as the protocol does.
func (l *acquisition) stamp(after time.Duration) string {
	return strconv.FormatFloat(float64(time.Now().Add(l.offset+after).UnixMilli())/1000, 'f', 3, 64)
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
			clientv3.OpPut(l.key("locked_at"), l.stamp(0)),
			clientv3.OpPut(l.key("alert_at"), l.stamp(l.span/2)),
			clientv3.OpPut(l.key("auto_unlock_at"), l.stamp(l.span)),
			clientv3.OpPut(l.key("own-field"), "x"),
		}, clientv3.OpGet(l.key("uuid")))
		switch {
		case err != nil:
			pause(context.Background(), 30*time.Millisecond)
			continue
		case resp.Succeeded:
			l.token = resp.Header.Revision
			l.world.registry.note(l.name, op{acquired, l.token, span{l.first, time.Now()}})
			return true
		}
		uuids := resp.Responses[0].GetResponseRange().Kvs
		if len(uuids) == 1 && string(uuids[0].Value) == l.uuid {
			l.token = uuids[0].CreateRevision
			l.world.registry.note(l.name, op{acquired, l.token, span{l.first, time.Now()}})
			return true
		}
		if len(uuids) == 1 {
			l.world.registry.note(l.name, op{observed, uuids[0].CreateRevision, span{call, time.Now()}})
		}
		return false
	}
	return false
}

// renewFor renews the lock for d, and reports whether it is still held.
func (l *acquisition) renewFor(ctx context.Context, d time.Duration) bool {
	end, next := time.Now().Add(d), time.Now().Add(l.span/4)
	for time.Now().Before(end) && ctx.Err() == nil {
		pause(ctx, min(time.Until(next), time.Until(end)))
		if time.Now().Before(next) {
			continue
		}
		call := time.Now()
		resp, err := l.txn(l.isHeld(), []clientv3.Op{
			clientv3.OpPut(l.key("alert_at"), l.stamp(l.span/2)),
			clientv3.OpPut(l.key("auto_unlock_at"), l.stamp(l.span)),
			clientv3.OpPut(l.key("alive_at"), l.stamp(0)),
		})
		if err != nil {
			next = time.Now().Add(30 * time.Millisecond)
			continue
		}
		kind := renewed
		if !resp.Succeeded {
			kind = lost
		}
		l.world.registry.note(l.name, op{kind, l.token, span{call, time.Now()}})
		if !resp.Succeeded {
			return false
		}
		next = call.Add(l.span / 4)
	}
	return true
}

// writeAtDue writes to the lock around the time when it is due, without renewing it.
func (l *acquisition) writeAtDue(ctx context.Context) {
	offset := l.offset
	if offset < -tolerance {
		offset = 0
	}
	due := l.first.Add(l.span + grace + offset)
	pause(ctx, time.Until(due.Add(-30*time.Millisecond)))
	for i := 0; time.Now().Before(due.Add(60*time.Millisecond)) && ctx.Err() == nil; i++ {
		if resp, err := l.txn(l.isHeld(), []clientv3.Op{clientv3.OpPut(l.key("own-field"), strconv.Itoa(i))}); err != nil || !resp.Succeeded {
			return
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
			l.world.registry.released(resp.Header.Revision, span{call, time.Now()})
			return true
		}
		if tries == 0 {
			l.world.registry.note(l.name, op{lost, l.token, span{call, time.Now()}})
		}
		return false
	}
	return false
}
