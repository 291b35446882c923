package main

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// commit sends a transaction until it is answered or ctx ends. again says that an answer
// may have been lost.
func (c *client) commit(ctx context.Context, next func() clientv3.Op) (resp *clientv3.TxnResponse, again bool, err error) {
	if c.is("bounds each read alone") {
		c.readAll()
	}
	for {
		limit := c.timeout / 2
		if c.is("gives up quickly") {
			limit = 100 * time.Millisecond
		}
		attempt, cancel := context.WithTimeout(ctx, limit)
		r, err := c.etcd.Do(attempt, next())
		cancel()
		if err == nil {
			return r.Txn(), again, nil
		}
		if c.is("tries once") || c.is("gives up quickly") {
			return nil, again, err
		}
		again = true
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, again, err
		}
	}
}

// readAll is what an HTTP library does that has a time limit for each read only.
func (c *client) readAll() {
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.etcd.Endpoints()[0], "http://"))
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")
	for buf := make([]byte, 1<<10); err == nil; {
		_ = conn.SetReadDeadline(time.Now().Add(c.timeout))
		_, err = conn.Read(buf)
	}
}

// attempt tries to take a lock, and returns the revision to wait from otherwise.
func (c *client) attempt(ctx context.Context, q command, uuid *string) (answer, int64) {
	now := time.Now()
	puts, late := c.puts(q, *uuid, now)
	if c.is("reads, then writes") {
		if a, revision, done := c.readThenWrite(ctx, q, puts); done {
			return a, revision
		}
	}
	free := clientv3.Compare(clientv3.Version(c.key(q.Name, "uuid")), "=", 0)
	get := []clientv3.Op{clientv3.OpGet(c.key(q.Name, ""), clientv3.WithPrefix())}
	if c.is("writes to a held lock") {
		get = append(get, clientv3.OpPut(c.key(q.Name, "waiters"), "1"))
	}
	r, again, err := c.commit(ctx, func() clientv3.Op {
		if c.is("has a new uuid for each attempt") {
			*uuid = c.newUUID()
			puts, late = c.puts(q, *uuid, now)
		}
		return clientv3.OpTxn([]clientv3.Cmp{free}, puts, get)
	})
	if err != nil {
		return failed("unavailable"), 0
	}
	token := r.Header.Revision
	deadline := token
	if !r.Succeeded {
		holder, created := c.holder(q.Name, r.Responses[0].GetResponseRange())
		if !again || holder["uuid"] != *uuid {
			return answer{Error: "held", Holder: holder}, token
		}
		if !c.is("takes the token of the last answer") {
			token = created
		}
		deadline = created
	}
	if len(late) > 0 {
		_, _, _ = c.commit(ctx, func() clientv3.Op { return clientv3.OpTxn(nil, late, nil) })
	}
	if c.is("takes the cluster's id for the token") {
		token = int64(r.Header.ClusterId >> 1)
	}
	c.hold(*uuid, &heldLock{name: q.Name, revision: deadline, deadline: now.Add(seconds(q.Patience))})
	return answer{OK: true, UUID: *uuid, Token: token}, 0
}

// puts are the writes of an acquisition, and those that a fault puts off.
func (c *client) puts(q command, uuid string, now time.Time) (puts, late []clientv3.Op) {
	deadline := clientv3.OpPut(c.key(q.Name, "auto_unlock_at"), c.stamp(now.Add(seconds(q.Patience))))
	puts = []clientv3.Op{
		clientv3.OpPut(c.key(q.Name, "uuid"), uuid),
		clientv3.OpPut(c.key(q.Name, "hostname"), "here"),
		clientv3.OpPut(c.key(q.Name, "purpose"), q.Purpose),
		clientv3.OpPut(c.key(q.Name, "locked_at"), c.stamp(now)),
		clientv3.OpPut(c.key(q.Name, "alert_at"), c.stamp(now.Add(seconds(q.AlertAfter)))),
	}
	if c.is("writes the deadline later") {
		return puts, []clientv3.Op{deadline}
	}
	return append(puts, deadline), nil
}

func (c *client) readThenWrite(ctx context.Context, q command, puts []clientv3.Op) (a answer, revision int64, done bool) {
	r, err := c.etcd.Get(ctx, c.key(q.Name, "uuid"))
	if err != nil || r.Count > 0 {
		return a, 0, false
	}
	if _, err := c.etcd.Txn(ctx).Then(puts...).Commit(); err != nil {
		return failed("unavailable"), 0, true
	}
	return answer{OK: true}, 0, true
}

func (c *client) holder(name string, r *pb.RangeResponse) (fields map[string]string, created int64) {
	fields = map[string]string{}
	for _, kv := range r.Kvs {
		if string(kv.Key) == c.key(name, "uuid") {
			created = kv.CreateRevision
		}
	}
	for _, kv := range r.Kvs {
		field := strings.TrimPrefix(string(kv.Key), c.key(name, ""))
		leftover := kv.ModRevision < created && !c.is("reads leftovers")
		if !strings.Contains(field, "/") && !leftover && !c.is("forgets the holder") {
			fields[field] = string(kv.Value)
		}
	}
	return fields, created
}

func (c *client) tryLockAll(q command) answer {
	all := answer{OK: true}
	for _, name := range q.Names {
		q.Name = name
		uuid := c.newUUID()
		a, _ := c.attempt(context.Background(), q, &uuid)
		switch {
		case a.OK:
			all.Locks = append(all.Locks, grant{Name: name, UUID: a.UUID, Token: a.Token})
		case c.is("takes all or nothing"):
			return a
		default:
			all.Held = append(all.Held, refusal{Name: name, Holder: a.Holder})
		}
	}
	return all
}

// ifHeld sends a transaction that compares the uuid.
func (c *client) ifHeld(ctx context.Context, l *heldLock, uuid string, ops ...clientv3.Op) (again bool, err error) {
	compare := []clientv3.Cmp{clientv3.Compare(clientv3.Value(c.key(l.name, "uuid")), "=", uuid)}
	if c.is("compares nothing") {
		compare = nil
	}
	r, again, err := c.commit(ctx, func() clientv3.Op { return clientv3.OpTxn(compare, ops, nil) })
	if err == nil && !r.Succeeded {
		l.lost = true
		err = errLost
	}
	return again, err
}

// renew is ifHeld with a comparison of the newest write of the deadline.
func (c *client) renew(ctx context.Context, l *heldLock, uuid string, ops ...clientv3.Op) error {
	if c.is("compares only the uuid") || c.is("compares nothing") {
		_, err := c.ifHeld(ctx, l, uuid, ops...)
		return err
	}
	own, deadline := c.key(l.name, "uuid"), c.key(l.name, "auto_unlock_at")
	for {
		r, _, err := c.commit(ctx, func() clientv3.Op {
			return clientv3.OpTxn([]clientv3.Cmp{
				clientv3.Compare(clientv3.Value(own), "=", uuid), clientv3.Compare(clientv3.ModRevision(deadline), "=", l.revision),
			}, ops, []clientv3.Op{clientv3.OpGet(own), clientv3.OpGet(deadline)})
		})
		if err != nil {
			return err
		}
		if r.Succeeded {
			l.revision = r.Header.Revision
			return nil
		}
		kvs := slices.Concat(r.Responses[0].GetResponseRange().Kvs, r.Responses[1].GetResponseRange().Kvs)
		if len(kvs) < 2 || string(kvs[0].Value) != uuid {
			l.lost = true
			return errLost
		}
		l.revision = kvs[1].ModRevision
	}
}

var errLost = errors.New("lost")

func kindOf(err error) answer {
	switch {
	case err == nil:
		return answer{OK: true}
	case errors.Is(err, errLost):
		return failed("lost")
	}
	return failed("unavailable")
}

func (c *client) alive(l *heldLock, q command) answer {
	if c.lost(l, 0) {
		return failed("lost")
	}
	ctx, cancel := c.context(c.timeout)
	defer cancel()
	if !c.is("renews beyond the deadline") {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, l.deadline.Add(-500*time.Millisecond))
		defer stop()
	}
	now := time.Now()
	ops := []clientv3.Op{
		clientv3.OpPut(c.key(l.name, "alert_at"), c.stamp(now.Add(seconds(q.AlertAfter)))),
		clientv3.OpPut(c.key(l.name, "auto_unlock_at"), c.stamp(now.Add(seconds(q.Patience)))),
	}
	aliveAt := clientv3.OpPut(c.key(l.name, "alive_at"), c.stamp(now))
	switch {
	case c.is("writes alive_at later"):
		defer func() { _, _ = c.ifHeld(ctx, l, q.UUID, aliveAt) }()
	case c.is("writes the uuid again"):
		ops = append(ops, clientv3.OpPut(c.key(l.name, "uuid"), q.UUID), aliveAt)
	case !c.is("writes no alive_at"):
		ops = append(ops, aliveAt)
	}
	err := c.renew(ctx, l, q.UUID, ops...)
	if err == nil {
		l.deadline = now.Add(seconds(q.Patience))
	}
	return kindOf(err)
}

func (c *client) unlock(l *heldLock, q command) answer {
	ctx, cancel := c.context(c.timeout)
	defer cancel()
	var ops []clientv3.Op
	for _, field := range strings.Fields("uuid hostname purpose locked_at alert_at auto_unlock_at alive_at") {
		ops = append(ops, clientv3.OpDelete(c.key(l.name, field)))
	}
	switch {
	case c.is("unlocks by prefix"):
		ops = []clientv3.Op{clientv3.OpDelete(c.key(l.name, ""), clientv3.WithPrefix())}
	case c.is("leaves alive_at"):
		ops = ops[:len(ops)-1]
	case c.is("unlocks in two steps"):
		_, _ = c.ifHeld(ctx, l, q.UUID, ops[2:]...)
		ops = ops[:2]
	}
	again, err := c.ifHeld(ctx, l, q.UUID, ops...)
	if again && errors.Is(err, errLost) && !c.is("calls its own unlock a loss") {
		err = nil
	}
	return kindOf(err)
}
