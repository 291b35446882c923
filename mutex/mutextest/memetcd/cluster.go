// Package memetcd is an etcd cluster in memory, for simulations under virtual time. Its clients are
// real: a [Link] has a clientv3.Client whose innermost gRPC interceptors answer from memory instead
// of the network. So retries, token refresh, the resumption of watches, lease keep-alives and the
// words of errors are those of the client library, and production code runs on it as it is.
//
// Guaranteed: keys, revisions, transactions, leases, compaction, watches and
// alarms answer as those of etcd 3.7 do, with the client libraries of 3.5, 3.6
// and 3.7; one suite of operations runs against both. What blocks waits for channels and timers only, so that a
// testing/synctest bubble in which cluster and clients were made can move its
// clock. Nothing that a client observes depends on the order of a map.
//
// Not guaranteed: timing within etcd. Requests take no time unless [Faults] say so, a lease ends
// exactly at its TTL, and the members' states differ only by [Faults]. There is one permission per
// client instead of users and roles. Responses of watches are never split into fragments, which the
// client library would join, and tell progress only when they are asked for it. Membership,
// snapshots as a download, defragmentation, hashes, leader transfer, lists of leases and puts that
// keep the value or the lease are Unimplemented, and a request's size is estimated.
//
// This package links by go:linkname, once, and nothing else in the module does: it sets a channel
// of the client library to nil, which was made outside of every bubble and for which all watches
// wait, so that time would stop. The repository's ADR 25 says why there is no other way.
package memetcd

import (
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// Options describes a cluster. The zero value is a new, empty one.
type Options struct {
	// Revision is where the store begins; 0 is etcd's 1.
	Revision int64
	// KeepAlive is after how long of silence the clients' connections break, as their
	// HTTP/2 keep-alive would have it; 0 is never.
	KeepAlive time.Duration
}

// Cluster is an etcd cluster. Its methods may be called concurrently.
type Cluster struct {
	keepAlive time.Duration

	mu sync.Mutex
	state
	id     uint64
	faults Faults
	links  []*Link
	// tokens counts how often all auth tokens have ended.
	tokens int
	// granted counts the leases that got their id here: no restore gives one twice.
	granted int64
	// changed is closed, and replaced, when something happens that may be waited for.
	changed chan struct{}
	expiry  *time.Timer
	closed  bool
	applied func(Applied)
}

// Applied is a request that etcd carried out or refused.
type Applied struct {
	// Link is the client that sent it; nil for the end of a lease.
	Link    *Link
	Request Message
	Err     error
	// Events are what it changed, each with its key-value of the revision before.
	Events []*mvccpb.Event
}

// OnApply sets a function that is called with each request in the order in which they are carried
// out: the true history. It must not call the cluster, and not keep or change what it is given.
func (c *Cluster) OnApply(f func(Applied)) { c.do(func() { c.applied = f }) }

// observe reports what happened since the log had n commits.
func (c *Cluster) observe(a Applied, n int) {
	if c.applied == nil {
		return
	}
	for _, commit := range c.log[n:] {
		a.Events = append(a.Events, commit.events...)
	}
	c.applied(a)
}

// state is what a backup has.
type state struct {
	store
	leases map[int64]*lease
	alarms []pb.AlarmType
}

func (s *state) clone() state {
	c := state{store: s.store.clone(), leases: make(map[int64]*lease), alarms: slices.Clone(s.alarms)}
	for id, l := range s.leases {
		own := *l
		c.leases[id] = &own
	}
	return c
}

// New returns a cluster that serves. In a simulation it belongs inside the bubble.
func New(o Options) *Cluster {
	c := &Cluster{
		keepAlive: o.KeepAlive,
		state:     state{store: store{rev: max(o.Revision, 1), compacted: -1, versions: make(map[string][]version)}, leases: make(map[int64]*lease)},
		id:        0xe7cd_0000_0000_0001,
		changed:   make(chan struct{}),
	}
	c.expiry = time.AfterFunc(time.Hour, c.expire)
	c.expiry.Stop()
	return c
}

// Close closes the clients, and with them all goroutines of theirs. What uses a client
// should have ended before: the library repeats some requests of a closed one.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.closed = true
	c.expiry.Stop()
	links := c.links
	c.wake()
	c.mu.Unlock()
	for _, l := range links {
		_ = l.Close() // which has no errors
	}
	return nil
}

// do changes something that may be waited for.
func (c *Cluster) do(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	c.wake()
}

// wake makes every waiter check again.
func (c *Cluster) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Cluster) commit(w *write) {
	if len(w.events) > 0 {
		c.rev++
		c.log = append(c.log, commit{c.rev, time.Now(), w.events})
		c.wake()
	}
}

func (c *Cluster) header(rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: c.id, MemberId: 1, Revision: rev, RaftTerm: 2}
}

// Revision returns the newest revision.
func (c *Cluster) Revision() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rev
}

// SetAlarm raises or disarms an alarm. At NOSPACE etcd refuses puts and new
// leases, at CORRUPT all that goes through its log.
func (c *Cluster) SetAlarm(alarm pb.AlarmType, on bool) { c.do(func() { c.setAlarm(alarm, on) }) }

func (c *Cluster) setAlarm(alarm pb.AlarmType, on bool) bool {
	i := slices.Index(c.alarms, alarm)
	switch {
	case on && i < 0 && alarm != pb.AlarmType_NONE:
		c.alarms = append(c.alarms, alarm)
	case !on && i >= 0:
		c.alarms = slices.Delete(c.alarms, i, i+1)
	case !on:
		return false
	}
	return true
}

// ExpireTokens ends all auth tokens: the next request of a client with a user gets "invalid auth
// token", upon which it logs in again, and so does a new watch on a stream opened before.
func (c *Cluster) ExpireTokens() { c.do(func() { c.tokens++ }) }

// Snapshot is a backup.
type Snapshot struct{ state state }

// Snapshot returns a backup of the cluster as it is.
func (c *Cluster) Snapshot() *Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Snapshot{c.state.clone()}
}

// Restored is how a backup comes back. The zero value is a rollback in place: the
// same cluster id, an older revision.
type Restored struct {
	// NewCluster gives the cluster another id, as etcdutl does unless told otherwise.
	NewCluster bool
	// Bump is etcdutl's --bump-revision with --mark-compacted, unless it is 0.
	Bump int64
}

// Restore replaces the data by that of a backup and breaks all connections. A backup
// may be restored more than once. Every lease has its full TTL again.
func (c *Cluster) Restore(s *Snapshot, how Restored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s.state.clone()
	if how.NewCluster {
		c.id++
	}
	if how.Bump > 0 {
		c.rev += how.Bump
		_ = c.compact(c.rev) // it is neither compacted nor in the future
	}
	for _, l := range c.links {
		l.reset()
		l.floor = c.rev
	}
	c.promote()
	c.wake()
}

// alarmMembers answers for all alarms, in the order in which they were raised.
func (c *Cluster) alarmMembers() (all []*pb.AlarmMember) {
	for _, a := range c.alarms {
		all = append(all, &pb.AlarmMember{MemberID: 1, Alarm: a})
	}
	return all
}
