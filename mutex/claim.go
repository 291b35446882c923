package mutex

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// claim is the request that takes one lock. It keeps its uuid for all attempts, by which it
// recognizes a lock that was taken by an attempt whose answer was lost.
type claim struct {
	outcome
	c     *Client
	base  string   // the name that was asked for, which its ticket has
	names []string // it takes one of these: the base, or the slots of it
	name  string   // of the next attempt
	uuid  string
	set   settings
	call  call
	since time.Time
	holds []string // the uuids of the locks that it is asked for under

	stamped time.Time // when the deadlines of the last attempt were computed
	sent    map[string]time.Time
	doubts  map[string]int // unsure, of the names that were tried before

	lock     *Lock
	holder   Holder // if lock is nil, also the last one
	revision int64
	place
}

// call is where the lock was asked for.
type call struct {
	backtrace string
	goroutine uint64
}

func (c *Client) claim(name string, set settings, at call) (*claim, error) {
	if err := protocol.ValidateName(name); err != nil {
		return nil, fmt.Errorf("mutex: %w", err)
	}
	uuid, err := newUUID()
	if err != nil {
		return nil, err
	}
	names := []string{name}
	for i := range set.slots {
		names = append(names[:i], name+"/"+strconv.Itoa(i))
	}
	return &claim{
		c: c, base: name, names: names, name: names[mrand.IntN(len(names))], uuid: uuid, set: set, call: at, since: time.Now(),
		sent: map[string]time.Time{}, doubts: map[string]int{},
	}, nil
}

// newUUID returns a random uuid in its canonical form.
func newUUID() (string, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil { // never, from Go 1.24 on
		return "", fmt.Errorf("mutex: uuid: %w", err)
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

// timeout is how long one attempt may take.
func (s settings) timeout() time.Duration { return min(attemptTimeout, s.patience/5) }

// stamp sets the deadlines of the next attempt. An attempt that was not answered is repeated
// as it was while its deadlines are far off, since either may be the one that counts.
func (cl *claim) stamp() {
	now := time.Now()
	if cl.unsure == 0 || now.Sub(cl.stamped) > cl.set.patience/4 {
		cl.stamped = now
	}
	for text, began := range cl.sent {
		if now.Sub(began) > cl.set.patience {
			delete(cl.sent, text)
		}
	}
	cl.sent[timestamp(cl.stamped, cl.set.length(0))] = cl.stamped
}

// length is the time to auto_unlock_at of a lock that has been held for so long.
func (s settings) length(held time.Duration) time.Duration {
	if s.keep == 0 {
		return s.patience
	}
	return min(s.patience, s.keep-held)
}

func timestamp(t time.Time, after time.Duration) string {
	return protocol.TimestampOf(t.Add(after)).String()
}

// written returns all fields of the lock, with the values of the last attempt.
func (cl *claim) written() map[string]string {
	fields := maps.Clone(cl.set.metadata)
	for field, value := range map[string]string{
		"uuid": cl.uuid, "hostname": cl.c.hostname, "pid": strconv.Itoa(os.Getpid()), "backtrace": cl.call.backtrace,
		"owner": cl.set.owner, "purpose": cl.set.purpose, fieldIdentity: cl.set.identity,
		"locked_at": timestamp(cl.stamped, 0), "alert_at": timestamp(cl.stamped, cl.set.expect), "auto_unlock_at": timestamp(cl.stamped, cl.set.length(0)),
	} {
		if value != "" {
			fields[field] = value
		}
	}
	return fields
}

func (cl *claim) step() step {
	if n := len(cl.free); n > 0 && !slices.Contains(cl.free, cl.name) { // it stays where an attempt was not answered
		cl.doubts[cl.name] = cl.unsure
		cl.name = cl.free[mrand.IntN(n)]
		cl.unsure = cl.doubts[cl.name]
	}
	cl.stamp()
	s := step{
		compares: []clientv3.Cmp{clientv3.Compare(clientv3.Version(cl.c.store.key(cl.name, protocol.FieldUUID)), "=", 0)},
		// What a transaction may read goes through raft, even if it does not. So the record of
		// another holder is read apart.
		otherwise: []clientv3.Op{
			clientv3.OpGet(cl.c.store.key(cl.name, protocol.FieldUUID)),
			clientv3.OpGet(cl.c.store.key(cl.name, protocol.FieldAutoUnlockAt)),
		},
	}
	fields := cl.written()
	s.then = make([]clientv3.Op, 0, len(fields)) // an Op is large to copy
	for _, f := range sorted(fields) {
		s.then = append(s.then, clientv3.OpPut(cl.c.store.layout.Key(cl.name, f), fields[f]))
	}
	cl.queue(&s)
	return s
}

func (cl *claim) answered(a answer) bool {
	if cl.lock = nil; len(cl.names) == 1 && len(cl.before) < 2 { // it says nothing about other slots and tickets
		cl.revision = a.revision
	}
	if a.succeeded {
		cl.lock = newLock(cl, cl.stamped, a.cluster, a.revision, a.revision)
		return true
	}
	h, _ := cl.c.store.holder(cl.name, a.found)
	if cl.saw(cl.name, h); h.UUID == cl.uuid {
		value, modified := cl.c.store.deadline(cl.name, a)
		began, recent := cl.sent[value]
		if !recent {
			began = time.Now().Add(-cl.set.patience) // at the latest: the lock is lost
		}
		cl.lock = newLock(cl, began, a.cluster, h.Token, modified)
		cl.lock.late-- // the one that has taken it
	}
	cl.seat(a)
	return cl.lock != nil || cl.fair || len(cl.free) == 0 // or else it tries another slot
}

// emit reports the lock that was taken, if one was.
func (cl *claim) emit(ctx context.Context) {
	if cl.lock != nil {
		cl.lock.emit(Event{Kind: EventTaken, Context: ctx, Took: time.Since(cl.since)})
	}
}

// reading is the request that reads who holds the lock of a failed claim.
type reading struct {
	outcome
	cl *claim
}

func (r *reading) step() step { return step{then: r.cl.c.store.read(r.cl.name)} }

func (r *reading) answered(a answer) bool {
	if h, ok := r.cl.c.store.holder(r.cl.name, a.found); ok {
		r.cl.holder = h
	}
	return true
}

// failure returns why the claim has not taken the lock, if it has not.
func (cl *claim) failure(waiting error) error {
	held := &HeldError{Name: cl.base, Slots: cl.set.slots, Holder: cl.holder, Err: waiting}
	switch {
	case cl.holder.UUID != "" && (errors.Is(cl.err, context.DeadlineExceeded) || errors.Is(cl.err, context.Canceled)):
		held.Err = cl.err
	case cl.err != nil:
		return fmt.Errorf("mutex: lock %q: %w", protocol.Clip([]byte(cl.base), 200), cl.err)
	case cl.lock != nil:
		return nil
	}
	return held
}
