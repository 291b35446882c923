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

// commit sends a transaction until it is answered or ctx ends. It returns also how many attempts
// were not answered.
func (c *client) commit(ctx context.Context, next func() clientv3.Op) (resp *clientv3.TxnResponse, unanswered int, err error) {
	if c.is("bounds each read alone") {
		c.readAll()
	}
	for {
		r, err := c.try(ctx, next())
		if err == nil {
			return r.Txn(), unanswered, nil
		}
		unanswered++
		if c.is("tries once") || c.is("gives up quickly") {
			return nil, unanswered, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, unanswered, err
		}
	}
}

func (c *client) try(ctx context.Context, op clientv3.Op) (r clientv3.OpResponse, err error) {
	limit := c.timeout / 2
	switch c.fault {
	case "gives up quickly":
		limit = 100 * time.Millisecond
	case "bounds a request by its wait only":
		limit = time.Hour
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !c.is("leaves its requests on their way") {
		return c.etcd.Do(ctx, op)
	}
	answered := make(chan struct{})
	go func() {
		r, err = c.etcd.Do(context.WithoutCancel(ctx), op)
		close(answered)
	}()
	select {
	case <-answered:
		return r, err
	case <-ctx.Done():
		return clientv3.OpResponse{}, ctx.Err()
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
	compares := []clientv3.Cmp{clientv3.Compare(clientv3.Version(c.key(q.Name, "uuid")), "=", 0)}
	get := []clientv3.Op{clientv3.OpGet(c.key(q.Name, ""), clientv3.WithPrefix())}
	if c.is("writes to a held lock") {
		get = append(get, clientv3.OpPut(c.key(q.Name, "waiters"), "1"))
	}
	compares, puts, get = c.inOrder(q, compares, puts, get)
	l := &heldLock{name: q.Name, deadline: now.Add(seconds(q.Patience)), expires: now.Add(seconds(q.Patience))}
	r, unanswered, err := c.commit(ctx, func() clientv3.Op {
		if c.is("has a new uuid for each attempt") {
			*uuid = c.newUUID()
			puts, late = c.puts(q, *uuid, now)
		}
		return clientv3.OpTxn(compares, puts, get)
	})
	l.late = unanswered
	if err != nil {
		c.release(l, *uuid, false)
		return failed("unavailable"), 0
	}
	token := r.Header.Revision
	l.token, l.revision, l.cluster = token, token, r.Header.ClusterId
	if !r.Succeeded {
		holder, created := c.holder(q.Name, r.Responses[0].GetResponseRange())
		if unanswered == 0 || holder["uuid"] != *uuid {
			c.release(l, *uuid, false)
			return answer{Error: "held", grant: grant{Holder: holder}}, token
		}
		if !c.is("takes the token of the last answer") {
			token = created
		}
		l.token, l.revision = created, created
		l.late--
	}
	if len(late) > 0 {
		_, _, _ = c.commit(ctx, func() clientv3.Op { return clientv3.OpTxn(nil, late, nil) })
	}
	if c.is("takes the cluster's id for the token") {
		token = int64(r.Header.ClusterId >> 1)
	}
	c.hold(*uuid, l)
	return answer{OK: true, grant: grant{UUID: *uuid, Token: token}}, 0
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
			if c.is("takes a minute for many names") {
				c.held[a.UUID].deadline = c.held[a.UUID].deadline.Add(-time.Minute)
			}
		case c.is("takes all or nothing"):
			return a
		default:
			all.Held = append(all.Held, grant{Name: name, Holder: a.Holder})
		}
	}
	return all
}

// ifHeld sends a transaction that compares the uuid.
func (c *client) ifHeld(ctx context.Context, l *heldLock, uuid string, ops ...clientv3.Op) (unanswered int, err error) {
	compare := []clientv3.Cmp{clientv3.Compare(clientv3.Value(c.key(l.name, "uuid")), "=", uuid)}
	if c.is("compares nothing") {
		compare = nil
	}
	r, unanswered, err := c.commit(ctx, func() clientv3.Op { return clientv3.OpTxn(compare, ops, nil) })
	if err == nil && (!r.Succeeded || c.restored(l, r)) {
		err = errLost
	}
	return unanswered, err
}

// restored reports whether an answer is of another etcd than that in which the lock was taken.
func (c *client) restored(l *heldLock, r *clientv3.TxnResponse) bool {
	return r.Header.ClusterId != l.cluster && !c.is("does not compare the cluster") ||
		r.Header.Revision < l.token && !c.is("does not compare the token")
}

// release deletes in the background a lock that is lost, and what late attempts take.
func (c *client) release(l *heldLock, uuid string, lost bool) {
	late := l.late
	if c.is("forgets late attempts") || lost && c.is("forgets a lock that it lost") {
		return
	}
	go func() {
		for ; lost || late > 0 && time.Now().Before(l.expires); <-time.After(100 * time.Millisecond) {
			err := c.remove(l, uuid)
			if err == nil && !lost && !c.is("compares nothing") {
				late--
			}
			lost = lost && err != nil && !errors.Is(err, errLost)
			if c.is("releases in the background once") {
				return
			}
		}
	}()
}

func (c *client) remove(l *heldLock, uuid string) error {
	ctx, cancel := c.context(c.timeout)
	defer cancel()
	unanswered, err := c.ifHeld(ctx, l, uuid, c.deletes(l)...)
	if unanswered > 0 && errors.Is(err, errLost) && !c.is("calls its own unlock a loss") {
		return nil
	}
	return err
}

func (c *client) deletes(l *heldLock) (ops []clientv3.Op) {
	if c.is("unlocks by prefix") {
		return []clientv3.Op{clientv3.OpDelete(c.key(l.name, ""), clientv3.WithPrefix())}
	}
	for _, field := range strings.Fields("uuid hostname purpose locked_at alert_at auto_unlock_at alive_at") {
		ops = append(ops, clientv3.OpDelete(c.key(l.name, field)))
	}
	if c.is("leaves alive_at") {
		ops = ops[:len(ops)-1]
	}
	return ops
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
		if c.restored(l, r) {
			return errLost
		}
		if r.Succeeded {
			l.revision = r.Header.Revision
			return nil
		}
		kvs := slices.Concat(r.Responses[0].GetResponseRange().Kvs, r.Responses[1].GetResponseRange().Kvs)
		if len(kvs) < 2 || string(kvs[0].Value) != uuid {
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
	now := time.Now()
	deadline := now.Add(seconds(q.Patience))
	if deadline.Before(l.deadline) && !c.is("counts a shorter patience when it is answered") {
		l.deadline = deadline
	}
	ctx, cancel := c.context(c.timeout)
	defer cancel()
	if !c.is("renews beyond the deadline") {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, l.deadline.Add(-500*time.Millisecond))
		defer stop()
	}
	ops := []clientv3.Op{
		clientv3.OpPut(c.key(l.name, "alert_at"), c.stamp(now.Add(seconds(q.AlertAfter)))),
		clientv3.OpPut(c.key(l.name, "auto_unlock_at"), c.stamp(deadline)),
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
		l.deadline = deadline
	}
	l.lost = errors.Is(err, errLost)
	return kindOf(err)
}

func (c *client) unlock(l *heldLock, q command) answer {
	if c.is("unlocks in two steps") {
		_, _ = c.ifHeld(context.Background(), l, q.UUID, c.deletes(l)[2:]...)
	}
	lost := c.lost(l, 0)
	if lost && !c.is("hides a loss by its release") {
		if c.is("reports a loss after its release") {
			_ = c.remove(l, q.UUID)
		}
		c.release(l, q.UUID, true)
		return failed("lost")
	}
	err := c.remove(l, q.UUID)
	if err == nil || errors.Is(err, errLost) {
		l.lost = true
		c.release(l, q.UUID, false)
	}
	return kindOf(err)
}
