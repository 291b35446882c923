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

// released is where an owner says, in the transaction of its unlock, which lock
// it gave up: so no deletion is of unknown origin.
const released = "/hunt/released/"

// patience is how long an owner waits for an answer of etcd.
const patience = 400 * time.Millisecond

// owner takes one lock after the other.
type owner struct {
	world  *world
	group  *group
	client *clientv3.Client
	id     int
	rand   *rand.Rand
	// offset is how far its clock is ahead of the true one.
	offset time.Duration
	taken  int
}

func newOwner(w *world, g *group, client *clientv3.Client, id int) *owner {
	o := &owner{world: w, group: g, client: client, id: id, rand: w.rand(uint64(1000 + id))}
	switch n := o.rand.IntN(100); {
	case n < 20:
		o.offset = -between(o.rand, time.Second, 20*time.Second)
	case n < 30:
		o.offset = between(o.rand, 500*time.Millisecond, 3*time.Second)
	default:
		o.offset = between(o.rand, 0, 600*time.Millisecond) - 300*time.Millisecond
	}
	return o
}

// life is one lock in the hands of one owner.
type life struct {
	*owner
	name, uuid string
	span       time.Duration
	token      int64
	first      time.Time // when the lock was first asked for
	leaving    time.Time // when its release was first asked for

	mu      sync.Mutex
	stopped time.Time // when the owner stopped to care
}

func (l *life) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped.IsZero() {
		l.stopped = time.Now()
	}
}

func (l *life) stoppedAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped
}

func (o *owner) run(ctx context.Context) {
	for ctx.Err() == nil {
		name := lockName(o.rand.IntN(names))
		for again := true; again && ctx.Err() == nil; {
			again = o.live(ctx, name)
		}
		pause(ctx, between(o.rand, 20*time.Millisecond, 600*time.Millisecond))
	}
}

// lockName nests every third name in the one before it.
func lockName(n int) string {
	if n%3 == 2 {
		return fmt.Sprintf("job-%03d/sub", n-1)
	}
	return fmt.Sprintf("job-%03d", n)
}

// live takes a lock once and does with it what chance says. It reports whether
// to take the same again at once.
func (o *owner) live(ctx context.Context, name string) (again bool) {
	o.taken++
	l := &life{owner: o, name: name, uuid: fmt.Sprintf("%d-%d", o.id, o.taken), first: time.Now(),
		span: between(o.rand, 2*time.Second, 4*time.Second)}
	fate, hold := o.rand.IntN(100), between(o.rand, 20*time.Millisecond, 500*time.Millisecond)
	long := between(o.rand, 2*time.Second, 9*time.Second)
	o.world.registry.add(l)
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
	case fate < 78: // dies, but writes something when it is due
		l.stop()
		l.lastNotes(ctx)
	case fate < 90: // dies at once
	default: // dies later
		l.renewFor(ctx, long/2)
	}
	return false
}

func (l *life) key(field string) string { return prefix + l.name + "/" + field }

// stamp is the owner's clock as the protocol writes it.
func (l *life) stamp(after time.Duration) string {
	return strconv.FormatFloat(float64(time.Now().Add(l.offset+after).UnixMilli())/1000, 'f', 3, 64)
}

func (l *life) txn(compare clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return l.client.Txn(ctx).If(compare).Then(then...).Else(otherwise...).Commit()
}

func (l *life) mine() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(l.key("uuid")), "=", l.uuid)
}

// lock tries until it knows, but not for long.
func (l *life) lock() bool {
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
			l.world.registry.note(l.name, op{took, l.token, span{l.first, time.Now()}})
			return true
		}
		holder := resp.Responses[0].GetResponseRange().Kvs
		if len(holder) == 1 && string(holder[0].Value) == l.uuid {
			l.token = holder[0].CreateRevision
			l.world.registry.note(l.name, op{took, l.token, span{l.first, time.Now()}})
			return true
		}
		if len(holder) == 1 {
			l.world.registry.note(l.name, op{met, holder[0].CreateRevision, span{call, time.Now()}})
		}
		return false
	}
	return false
}

// renewFor renews for a while and reports whether the lock is held still.
func (l *life) renewFor(ctx context.Context, d time.Duration) bool {
	end, next := time.Now().Add(d), time.Now().Add(l.span/4)
	for time.Now().Before(end) && ctx.Err() == nil {
		pause(ctx, min(time.Until(next), time.Until(end)))
		if time.Now().Before(next) {
			continue
		}
		call := time.Now()
		resp, err := l.txn(l.mine(), []clientv3.Op{
			clientv3.OpPut(l.key("alert_at"), l.stamp(l.span/2)),
			clientv3.OpPut(l.key("auto_unlock_at"), l.stamp(l.span)),
			clientv3.OpPut(l.key("alive_at"), l.stamp(0)),
		})
		if err != nil {
			next = time.Now().Add(30 * time.Millisecond)
			continue
		}
		kind := alive
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

// lastNotes writes to the lock in the moments when it is due, but prolongs
// nothing.
func (l *life) lastNotes(ctx context.Context) {
	shown := l.offset
	if shown < -tolerance {
		shown = 0
	}
	due := l.first.Add(l.span + grace + shown)
	pause(ctx, time.Until(due.Add(-30*time.Millisecond)))
	for i := 0; time.Now().Before(due.Add(60*time.Millisecond)) && ctx.Err() == nil; i++ {
		if resp, err := l.txn(l.mine(), []clientv3.Op{clientv3.OpPut(l.key("own-field"), strconv.Itoa(i))}); err != nil || !resp.Succeeded {
			return
		}
	}
}

// unlock tries until it knows, but not for long.
func (l *life) unlock() bool {
	l.mu.Lock()
	l.leaving = time.Now()
	l.mu.Unlock()
	ops := []clientv3.Op{clientv3.OpPut(fmt.Sprintf("%s%d", released, l.id), l.uuid)}
	for _, f := range []string{"uuid", "hostname", "locked_at", "alert_at", "auto_unlock_at", "alive_at", "own-field"} {
		ops = append(ops, clientv3.OpDelete(l.key(f)))
	}
	for tries := 0; tries < 6; tries++ {
		call := time.Now()
		resp, err := l.txn(l.mine(), ops)
		if err != nil {
			pause(context.Background(), 30*time.Millisecond)
			continue
		}
		if resp.Succeeded {
			l.world.registry.leave(resp.Header.Revision, span{call, time.Now()})
			return true
		}
		if tries == 0 {
			l.world.registry.note(l.name, op{lost, l.token, span{call, time.Now()}})
		}
		return false
	}
	return false
}
