package app_test

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A lock comes due afterProbe after a regular probe was answered: only the probe that begins with the read of the lock
// may show what happens then.
const (
	lateInterval = 2 * time.Second
	afterProbe   = 1500 * time.Millisecond
	lateGrace    = 3 * time.Second // no probe is overdue before that
	// lead is how long before due a lock is read where probes take as long, which is the maximum.
	lead = 100 * time.Millisecond
)

func lateConfig(c *config.Config) {
	c.Reaper.ProbeInterval, c.Reaper.Grace = lateInterval, lateGrace
	c.Reaper.Settle = 2 * time.Second
	c.Election.Enabled, c.Reaper.StandbyDelay = false, 0
}

// traffic is what servers of etcd are asked for around the due of a lock.
type traffic struct {
	t   *testing.T
	due atomic.Pointer[time.Time]
	// read is called once the servers have read the lock, before they answer; probes that come with the read wait until
	// pass is closed. removal is called before the first removal is carried out.
	read, removal   func()
	pass            chan struct{}
	once            [2]sync.Once
	probed          atomic.Pointer[time.Time] // when the last probe came that was answered
	removals, ended atomic.Int64
}

func newTraffic(t *testing.T) *traffic {
	s := &traffic{t: t, pass: make(chan struct{}), read: func() {}, removal: func() {}}
	s.due.Store(&time.Time{})
	return s
}

func (s *traffic) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		switch req := req.(type) {
		case *etcdserverpb.AlarmRequest:
			return s.probe(ctx, req, handle)
		case *etcdserverpb.TxnRequest:
			if deletes(req) {
				s.removals.Add(1)
				defer s.ended.Add(1)
				s.once[1].Do(s.removal)
			} else if reads(req) && !s.due.Load().IsZero() {
				defer s.once[0].Do(s.read)
			}
		}
		return handle(ctx, req)
	})}
}

func (s *traffic) probe(ctx context.Context, req any, handle grpc.UnaryHandler) (any, error) {
	came := time.Now()
	<-time.After(lead)
	if due := *s.due.Load(); !due.IsZero() && !came.Before(due.Add(-lead)) {
		select {
		case <-s.pass:
		case <-ctx.Done():
		}
	}
	resp, err := handle(ctx, req)
	if err == nil {
		s.probed.Store(&came)
	}
	return resp, err
}

func deletes(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return op.GetRequestDeleteRange() != nil || op.GetRequestTxn() != nil && deletes(op.GetRequestTxn())
	})
}

func reads(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return strings.HasPrefix(string(op.GetRequestRange().GetKey()), prefix+"a/")
	})
}

// lock acquires a lock that comes due between two regular probes of a daemon, waits for the first of them, and returns
// when it is due.
func (s *traffic) lock(d *daemon, e *etcdtest.Etcd) (due time.Time) {
	s.t.Helper()
	d.awaitReaping()
	probed := d.probedAfter(time.Now())
	due = probed.Add(lateInterval + afterProbe).Truncate(time.Millisecond) // as the lock has it
	s.due.Store(&due)
	e.Put(e.Lock("a", due.Add(-lateGrace), due.Add(-lateGrace))...)
	d.probedAfter(probed)
	return due
}

// probedAfter waits for a good probe that began after a moment, and returns when it began.
func (d *daemon) probedAfter(moment time.Time) time.Time {
	d.t.Helper()
	var status api.Status
	etcdtest.Eventually(d.t, func() bool {
		require.Equal(d.t, http.StatusOK, d.getAPI("/api/v1/status", &status))
		return status.Etcd.Probed.After(moment)
	})
	return status.Etcd.Probed
}

// renewing is a holder that tries to renew the lock all the time until etcd answers, and then says whether etcd still
// had its lock.
func renewing(t *testing.T, e *etcdtest.Etcd, endpoint string) (mine <-chan bool) {
	t.Helper()
	client := e.Connect(func(c *clientv3.Config) { c.Endpoints = []string{endpoint} })
	ctx, cancel := context.WithTimeout(context.Background(), 2*etcdtest.Soon)
	t.Cleanup(cancel)
	answer := make(chan bool, 1)
	go func() {
		defer close(answer)
		for began, tried := time.Now(), 1; ctx.Err() == nil; tried++ {
			attempt, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			resp, err := client.Txn(attempt).If(clientv3.Compare(clientv3.Value(prefix+"a/uuid"), "=", "u-a")).
				Then(clientv3.OpPut(prefix+"a/auto_unlock_at", etcdtest.Stamp(time.Now().Add(time.Hour)))).Commit()
			if err == nil {
				cancel()
				t.Logf("etcd answered the holder after %d attempts in %s: the lock is its own: %t", tried, time.Since(began), resp.Succeeded)
				answer <- resp.Succeeded
				return
			}
			<-attempt.Done() // also where it failed at once
			cancel()
		}
	}()
	return answer
}

// soon returns what comes from a channel, or that it was closed.
func soon[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(etcdtest.Soon):
		require.FailNow(t, "nothing came in time")
	}
	return v
}

// threeMembers returns the leader of three members and one of its followers, and the functions that cut all three from
// each other, and that connect these two again: then only the leader can be elected, which has the longer log.
func threeMembers(t *testing.T, s *traffic) (e *etcdtest.Etcd, leader, follower string, leave, comeBack func()) {
	t.Helper()
	e = etcdtest.Start(t, localetcd.Options{Members: 3, Server: s.options()})
	at := -1
	etcdtest.Eventually(t, func() bool {
		at = slices.IndexFunc(e.Endpoints(), func(endpoint string) bool {
			st, err := e.Client.Status(t.Context(), endpoint)
			return err == nil && st.Leader == st.Header.MemberId
		})
		return at >= 0
	})
	first, second, third := e.Server(at), e.Server((at+1)%3), e.Server((at+2)%3)
	leave = func() {
		first.CutPeer(second.MemberID())
		first.CutPeer(third.MemberID())
		second.CutPeer(third.MemberID())
	}
	return e, e.Endpoints()[at], e.Endpoints()[(at+1)%3], leave, func() { first.MendPeer(second.MemberID()) }
}

// without is for how long the leader has no followers.
const without = 5 * time.Second

// The leader loses its followers once the lock was read, before it is due. A removal that was sent then would stay in its
// log, and be carried out before anything that the holder could send, which tries to renew by another member all the time.
func TestS3_NoRemovalWaitsForFollowers(t *testing.T) {
	t.Parallel()
	s, cut := newTraffic(t), make(chan time.Time, 1)
	e, leader, follower, leave, comeBack := threeMembers(t, s)
	s.read = func() {
		leave()
		close(s.pass)
		cut <- time.Now()
	}
	d := startDaemon(t, []string{leader}, lateConfig)
	due := s.lock(d, e)
	left := soon(t, cut)
	mine := renewing(t, e, follower)
	t.Logf("the leader lost its followers %s before the lock was due", due.Sub(left))
	awaitTime(t, due.Add(without))
	comeBack()
	require.True(t, <-mine, "the lock of a holder that tried to renew all the time was removed")
	require.Zero(t, s.removals.Load(), "a removal was sent in the outage")
}

// The leader loses its followers in the moment in which it gets the removal, which is carried out after the outage. The
// holder is told. It could have renewed the lock until that was due.
func TestS3_RemovalInTheLogOfALeaderWithoutFollowers(t *testing.T) {
	t.Parallel()
	s, sent := newTraffic(t), make(chan time.Time, 1)
	close(s.pass)
	e, leader, follower, leave, comeBack := threeMembers(t, s)
	s.removal = func() {
		leave()
		sent <- *s.probed.Load()
	}
	d := startDaemon(t, []string{leader}, lateConfig)
	due := s.lock(d, e)
	probed := soon(t, sent)
	mine := renewing(t, e, follower)
	require.False(t, probed.Before(due.Add(-lead)), "the last probe came %s before the lock was due", due.Sub(probed))
	awaitTime(t, due.Add(without))
	comeBack()
	require.False(t, <-mine, "the removal was not in the log of the leader")
	require.Empty(t, e.Keys("a/"))
	d.awaitMetric(1, "unlocker_forced_unlocks_total")
}

// The network of the daemon carries no request any more once the lock was read, before it is due, and later all that
// were sent. That of the holder, which tries to renew all the time, recovers after it.
func TestS3_NoRemovalWaitsInTheNetwork(t *testing.T) {
	t.Parallel()
	s, still := newTraffic(t), make(chan struct{})
	e := etcdtest.Start(t, localetcd.Options{Server: s.options()})
	near, far := e.Proxy(0), e.Proxy(0)
	s.read = func() {
		near.HoldRequests()
		far.HoldRequests()
		close(still)
	}
	d := startDaemon(t, []string{near.Addr()}, lateConfig)
	due := s.lock(d, e)
	soon(t, still)
	mine := renewing(t, e, far.Addr())
	// For longer than what counts as no outage, and less than a request may take.
	awaitTime(t, due.Add(lateInterval+time.Second))
	healed := time.Now()
	close(s.pass)
	require.NoError(t, near.Heal())
	d.probedAfter(healed)
	require.NoError(t, far.Heal())
	require.True(t, <-mine, "the lock of a holder that tried to renew all the time was removed")
	require.Zero(t, s.removals.Load(), "a removal was sent while the network stalled")
}

// The network of the daemon stalls with the removal inside. The holder, whose own network does not, renews
// meanwhile: the removal arrives, and is refused.
func TestS1_RemovalInsideAStalledNetwork(t *testing.T) {
	t.Parallel()
	s, sending := newTraffic(t), make(chan struct{})
	close(s.pass)
	e := etcdtest.Start(t, localetcd.Options{Server: s.options()})
	near := e.Proxy(0)
	d := newDaemonThat(t, []string{near.Addr()}, func(message string) {
		if message == api.LogRemoving {
			near.Blackhole()
			close(sending)
		}
	}, lateConfig)
	d.Start()
	t.Cleanup(func() { d.stop() })
	s.lock(d, e)
	soon(t, sending)
	require.True(t, <-renewing(t, e, e.Endpoints()[0]))
	require.Zero(t, s.removals.Load(), "the removal is inside the proxy")
	require.NoError(t, near.Heal())
	etcdtest.Eventually(t, func() bool { return s.ended.Load() == 1 }, "the removal arrives")
	etcdtest.Eventually(t, func() bool { return d.names(api.LogConflict)["a"] == 1 })
	require.Len(t, e.Keys("a/"), fieldsOfALock)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))
}

// hooked calls a function with each message before the daemon continues.
type hooked struct {
	slog.Handler
	logged func(message string)
}

func (h hooked) Handle(ctx context.Context, r slog.Record) error {
	defer h.logged(r.Message)
	return h.Handler.Handle(ctx, r)
}

func (h hooked) WithAttrs(attrs []slog.Attr) slog.Handler {
	return hooked{h.Handler.WithAttrs(attrs), h.logged}
}
