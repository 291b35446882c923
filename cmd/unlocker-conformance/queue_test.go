package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// turn is a wait of the client with a ticket.
type turn struct {
	name       string
	key, value string
	lease      clientv3.LeaseID
	stop       context.CancelFunc
	created    int64  // 0 if it has no ticket
	over       string // the ticket that it passes over
}

// queues reports whether the client waits with tickets. Those whose fault is another do not.
func (c *client) queues() bool {
	return c.is(goodClient) || strings.Contains(c.fault, "a ticket") || c.is("lets its ticket expire") || slices.ContainsFunc(faults(), func(f fault) bool {
		return f.does == c.fault && (f.check == "slots" || strings.HasPrefix(f.check, "queue"))
	})
}

// names are the locks of which it takes one.
func (c *client) names(q command) (names []string) {
	if q.Slots == 0 || c.is("has no slots") {
		return []string{q.Name}
	}
	if c.is("takes a slot too many") {
		q.Slots++
	}
	for i := range q.Slots {
		names = append(names, fmt.Sprint(q.Name, "/", i))
	}
	return names
}

// enter begins a wait. The first attempt that does not take the lock puts the ticket.
func (c *client) enter(ctx context.Context, q command, uuid string) (*turn, error) {
	t := &turn{name: q.Name, value: fmt.Sprintf(`{"uuid": %q, "slots": %d}`, uuid, q.Slots)}
	from, _ := protocol.TicketsOf(c.waiters, c.names(q)[0])
	if !c.is("queues at a slot") {
		from, _ = protocol.TicketsOf(c.waiters, q.Name)
	}
	t.key = from + uuid
	switch c.fault {
	case "puts a ticket that is not JSON":
		t.value = uuid
	case "has another uuid than its ticket":
		t.value = `{"uuid": "another"}`
	case "puts a ticket with a single slash":
		t.key = c.waiters + q.Name + "/" + uuid
	}
	ctx, t.stop = context.WithCancel(ctx)
	if c.is("puts a ticket without a lease") {
		return t, nil
	}
	lease, err := c.etcd.Grant(ctx, 10)
	if err != nil {
		return t, err
	}
	t.lease = lease.ID
	if !c.is("lets its ticket expire") {
		kept, err := c.etcd.KeepAlive(ctx, t.lease)
		go func() {
			for range kept {
				continue
			}
		}()
		return t, err
	}
	return t, nil
}

// leave ends a wait.
func (c *client) leave() {
	if !c.is("leaves its ticket when it gives up") {
		ctx, cancel := c.context(c.timeout)
		defer cancel()
		_, _ = c.etcd.Delete(ctx, c.turn.key)
	}
	c.turn.stop()
	c.turn = nil
}

// inOrder adds to an attempt what makes it one in turn.
func (c *client) inOrder(q command, compares []clientv3.Cmp, puts, otherwise []clientv3.Op) ([]clientv3.Cmp, []clientv3.Op, []clientv3.Op) {
	t := c.turn
	if t != nil && t.created != 0 {
		if !c.is("deletes its ticket later") {
			puts = append(puts, clientv3.OpDelete(t.key))
		}
		if t.over != "" && !c.is("leaves the ticket that it passes over") {
			puts = append(puts, clientv3.OpDelete(t.over))
		}
		return append(compares, clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.created)), puts, otherwise
	}
	name := q.Name
	if t != nil {
		name = t.name
		otherwise = append(otherwise, clientv3.OpPut(t.key, t.value, clientv3.WithLease(t.lease)))
	}
	if t != nil && !c.is("overtakes others") || c.is("always queues") {
		from, end := protocol.TicketsOf(c.waiters, name)
		compares = append(compares, clientv3.Compare(clientv3.Version(from), "=", 0).WithRange(end))
	}
	return compares, puts, otherwise
}

// refused notes that an attempt has not taken the lock, and reports whether the client waits on.
func (c *client) refused() bool {
	again := c.turn.created != 0
	if again && c.is("gives its place up when it is refused") {
		_, _ = c.etcd.Delete(context.Background(), c.turn.key)
	}
	return !again || !c.is("fails if another was faster")
}

// approach waits until the client is to try, then the revision is 0, or is the first and is to wait for a release after the revision.
func (c *client) approach(ctx context.Context, q command) (revision int64, ok bool) {
	t, passAfter, freed := c.turn, time.Second, time.Time{}
	if c.is("passes over others at once") {
		passAfter = 0
	}
	for ; ctx.Err() == nil; <-time.After(20 * time.Millisecond) {
		r, err := c.etcd.Get(ctx, c.waiters, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
		if err != nil {
			continue
		}
		if c.is("serves the last one first") {
			slices.Reverse(r.Kvs)
		}
		place := slices.IndexFunc(r.Kvs, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == t.key })
		t.over = ""
		if place < 0 {
			lost := t.created != 0
			if t.created = 0; lost && c.is("waits without a ticket once it was passed over") {
				return r.Header.Revision, true
			}
			return 0, !lost || !c.is("fails if it was passed over")
		}
		t.created = r.Kvs[place].CreateRevision
		free, err := c.free(ctx, q)
		switch {
		case err != nil || !free:
			freed = time.Time{}
		case freed.IsZero():
			freed = time.Now()
		}
		switch {
		case err != nil:
		case place == 0 && free && !c.is("sees releases only"):
			return 0, true
		case place == 0:
			return r.Header.Revision, true
		case place == 1 && free && time.Since(freed) >= passAfter && !c.is("waits for others without end"):
			t.over = string(r.Kvs[0].Key)
			return 0, true
		}
	}
	return 0, true
}

func (c *client) free(ctx context.Context, q command) (bool, error) {
	for _, name := range c.names(q) {
		r, err := c.etcd.Get(ctx, c.key(name, "uuid"), clientv3.WithCountOnly())
		if err != nil || r.Count == 0 {
			return err == nil, err
		}
	}
	return false, nil
}
