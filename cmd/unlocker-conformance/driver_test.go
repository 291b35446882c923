package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// faultVariable makes the test binary a client with the fault that it names, or a good one
// if it is goodClient.
const (
	faultVariable = "CONFORMANCE_FAULT"
	goodClient    = "none"
)

// client is a client of protocol 1 with raw transactions and at most one fault.
type client struct {
	etcd    *clientv3.Client
	prefix  string
	waiters string
	timeout time.Duration
	fault   string
	uuid    string // of the fault
	held    map[string]*heldLock
	turn    *turn // nil if it waits without a ticket
}

type heldLock struct {
	name      string
	deadline  time.Time
	revision  int64 // of auto_unlock_at
	token     int64
	cluster   uint64
	lost      bool
	late      int       // attempts to take it that may be executed late
	expires   time.Time // the deadline of those
	ticksLeft *atomic.Int64
}

// serve is the main function of the client.
func serve(fault string, in io.Reader, out io.Writer) int {
	timeout, err := time.ParseDuration(os.Getenv("UNLOCKER_ETCD_REQUEST_TIMEOUT"))
	if err != nil {
		return 1
	}
	endpoints := strings.Split(os.Getenv("UNLOCKER_ETCD_ENDPOINTS"), ",")
	if fault == "uses the first endpoint only" {
		endpoints = endpoints[:1]
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		return 1
	}
	defer func() { _ = etcd.Close() }()
	c := &client{
		etcd: etcd, prefix: os.Getenv("UNLOCKER_PREFIX"), waiters: os.Getenv("UNLOCKER_WAITERS_PREFIX"), timeout: timeout,
		fault: fault, uuid: rand.Text(), held: map[string]*heldLock{},
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var q command
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return 1
		}
		a := c.execute(q)
		a.ID = q.ID
		if json.NewEncoder(out).Encode(a) != nil {
			return 1
		}
		if q.Op == "quit" {
			break
		}
	}
	if c.is("exits with 1") {
		return 1
	}
	return 0
}

func (c *client) is(fault string) bool { return c.fault == fault }

func failed(kind string) answer { return answer{Error: kind} }

func (c *client) answerQuestions(lock, question string) {
	for resp := range c.etcd.Watch(context.Background(), question) {
		for range resp.Events {
			_, _ = c.etcd.Put(context.Background(), lock+"answered_at", "1700000000")
			if c.is("renews when it is asked") {
				_, _ = c.etcd.Put(context.Background(), lock+"auto_unlock_at", "1800000000")
			}
		}
	}
}

func (c *client) execute(q command) answer {
	l := c.held[q.UUID]
	switch q.Op {
	case "quit":
		return answer{OK: true}
	case "lock":
		a := c.lock(q)
		if a.OK && (c.is("renews when it is asked") || c.is("answers each question")) {
			go c.answerQuestions(c.prefix+q.Name+"/", "/unlocker/ask"+c.prefix+q.Name+"//"+a.UUID)
		}
		return a
	case "try_lock_all":
		return c.tryLockAll(q)
	}
	if l == nil {
		return failed("invalid")
	}
	switch q.Op {
	case "alive":
		return c.alive(l, q)
	case "unlock":
		return c.unlock(l, q)
	}
	return answer{OK: true, Lost: c.lost(l, seconds(q.Wait))}
}

func (c *client) lost(l *heldLock, wait time.Duration) bool {
	switch {
	case c.is("counts its renewals only"):
		<-time.After(wait)
		return l.lost
	case c.is("counts ticks instead of time"):
		return l.ticksLeft.Load() <= 0
	}
	margin := 500 * time.Millisecond
	if c.is("notices the deadline late") {
		margin = -margin
	}
	// The wall clock went on while the process was suspended; so does that of Go.
	if until := time.Until(l.deadline.Add(-margin)); until > 0 && !l.lost {
		<-time.After(min(until, wait))
	}
	return l.lost || !time.Now().Before(l.deadline.Add(-margin))
}

func (c *client) valid(name string) bool {
	return c.is("accepts any name") || !strings.Contains("/"+name+"/", "//")
}

func (c *client) lock(q command) answer {
	if !c.valid(q.Name) {
		return failed("invalid")
	}
	limit := max(c.timeout, seconds(q.Wait))
	ctx, cancel := c.context(limit)
	defer cancel()
	wait, stop := context.WithTimeout(ctx, seconds(q.Wait))
	if c.is("waits longer than asked") {
		wait, stop = context.WithTimeout(ctx, 2*seconds(q.Wait))
	}
	defer stop()
	uuid := c.newUUID()
	if q.Wait > 0 && c.queues() {
		var err error
		c.turn, err = c.enter(ctx, q, uuid)
		defer c.leave()
		if err != nil {
			return failed("unavailable")
		}
	}
	for tries := 0; ; tries++ {
		a, revision := c.attemptAny(ctx, q, &uuid)
		if a.Error != "held" || wait.Err() != nil || tries > 0 && c.is("tries once after a wait") {
			return a
		}
		if c.turn != nil {
			ok := c.refused()
			if ok {
				revision, ok = c.approach(wait, q)
			}
			if !ok {
				return a
			}
			if revision == 0 {
				continue
			}
		}
		if !c.await(wait, q, revision) {
			return failed("unavailable")
		}
	}
}

func (c *client) attemptAny(ctx context.Context, q command, uuid *string) (a answer, revision int64) {
	for _, q.Name = range c.names(q) {
		if a, revision = c.attempt(ctx, q, uuid); a.Error != "held" {
			break
		}
	}
	return a, revision
}

func (c *client) newUUID() string {
	if c.is("has one uuid") {
		return c.uuid
	}
	return rand.Text()
}

// await waits until a lock may be free.
func (c *client) await(ctx context.Context, q command, revision int64) bool {
	pause := map[string]time.Duration{"polls": 500 * time.Millisecond, "polls slowly": 18 * time.Second}[c.fault]
	if pause > 0 {
		<-time.After(pause)
		return true
	}
	if c.is("does not notice the end of its watch") {
		c.watchOnce(ctx, q.Name, revision)
		return true
	}
	options := []clientv3.OpOption{clientv3.WithRev(revision), clientv3.WithFilterPut()}
	if c.is("watches from now on") || c.is("watches from now on once it has a ticket") {
		options = options[1:]
	}
	key := c.key(q.Name, "uuid")
	if q.Slots > 0 {
		key, options = c.key(q.Name, ""), append(options, clientv3.WithPrefix())
	}
	for r := range c.etcd.Watch(ctx, key, options...) {
		if r.Err() != nil {
			return !c.is("fails if its revision is compacted")
		}
		if len(r.Events) > 0 {
			return true
		}
	}
	return true
}

func (c *client) watchOnce(ctx context.Context, name string, revision int64) {
	stream, err := pb.NewWatchClient(c.etcd.ActiveConnection()).Watch(ctx)
	if err != nil {
		return
	}
	create := &pb.WatchCreateRequest{Key: []byte(c.key(name, "uuid")), StartRevision: revision}
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
	for err == nil {
		var r *pb.WatchResponse
		if r, err = stream.Recv(); err == nil && slices.ContainsFunc(r.Events, func(e *mvccpb.Event) bool { return e.Type == mvccpb.DELETE }) {
			return
		}
	}
	<-ctx.Done()
}

// context bounds a command.
func (c *client) context(limit time.Duration) (context.Context, context.CancelFunc) {
	if c.is("has no timeouts") {
		limit = time.Hour
	}
	return context.WithTimeout(context.Background(), limit)
}

func (c *client) key(name, field string) string {
	if c.is("escapes names") {
		name = fmt.Sprintf("%q", name)
		name = name[1 : len(name)-1]
	}
	return c.prefix + name + "/" + field
}

func (c *client) stamp(at time.Time) string {
	if c.is("writes milliseconds") {
		return fmt.Sprint(at.UnixMilli())
	}
	return stamp(at)
}

func (c *client) hold(uuid string, l *heldLock) {
	c.held[uuid] = l
	if !c.is("counts ticks instead of time") {
		return
	}
	const tick = 20 * time.Millisecond
	l.ticksLeft = &atomic.Int64{}
	l.ticksLeft.Store(int64(time.Until(l.deadline) / tick))
	go func() {
		for ; ; <-time.After(tick) {
			l.ticksLeft.Add(-1)
		}
	}()
}
