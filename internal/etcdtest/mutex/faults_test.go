package mutex_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex"
)

func newClient(t *testing.T, etcd *clientv3.Client, opts ...mutex.Option) *mutex.Client {
	t.Helper()
	c, err := mutex.New(etcd, opts...)
	require.NoError(t, err)
	return c
}

// through returns a client through a proxy.
func through(e *etcdtest.Etcd, p *localetcd.Proxy, edits ...func(*clientv3.Config)) *clientv3.Client {
	return e.Connect(append(edits, func(c *clientv3.Config) { c.Endpoints = []string{"http://" + p.Addr()} })...)
}

type result struct {
	l   *mutex.Lock
	err error
}

// waiting starts a Lock that has to wait, and returns where its result comes.
func waiting(ctx context.Context, c *mutex.Client, name string) <-chan result {
	got := make(chan result, 1)
	go func() {
		l, err := c.Lock(ctx, name)
		got <- result{l, err}
	}()
	return got
}

func stillWaits(t *testing.T, got <-chan result, d time.Duration) {
	t.Helper()
	select {
	case r := <-got:
		require.FailNow(t, "did not wait", "%v %v", r.l, r.err)
	case <-time.After(d):
	}
}

func takesOver(t *testing.T, got <-chan result) {
	t.Helper()
	select {
	case r := <-got:
		require.NoError(t, r.err)
		require.NoError(t, r.l.Unlock(t.Context()))
	case <-time.After(etcdtest.Soon):
		require.FailNow(t, "waits although the lock is free")
	}
}

// TestWaitSurvives disturbs a waiter and a holder, and releases the lock.
func TestWaitSurvives(t *testing.T) {
	const ttl = 2 * time.Second
	for name, tc := range map[string]struct {
		options localetcd.Options
		edits   []func(*clientv3.Config)
		prepare func(*etcdtest.Etcd)
		fault   func(*testing.T, *etcdtest.Etcd, *localetcd.Proxy)
	}{
		"compaction": {fault: func(t *testing.T, e *etcdtest.Etcd, p *localetcd.Proxy) {
			p.Cut()
			last := e.Set("x", "note", "1")
			_, err := e.Client.Compact(t.Context(), last)
			require.NoError(t, err)
			require.NoError(t, p.Heal())
		}},
		"restart": {fault: func(t *testing.T, e *etcdtest.Etcd, _ *localetcd.Proxy) {
			e.Kill(0)
			require.NoError(t, e.Restart(t.Context()))
		}},
		"expired token": {
			options: localetcd.Options{AuthTokenTTL: ttl},
			prepare: func(e *etcdtest.Etcd) { e.Guard("ada", "secret", "/mutexes/") },
			edits:   []func(*clientv3.Config){func(c *clientv3.Config) { c.Username, c.Password = "ada", "secret" }},
			fault: func(t *testing.T, e *etcdtest.Etcd, _ *localetcd.Proxy) {
				<-time.After(2 * ttl)
				etcdtest.Eventually(t, func() bool { return len(e.Keys("a/alive_at")) > 0 }, "not renewed")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := etcdtest.Start(t, tc.options)
			if tc.prepare != nil {
				tc.prepare(e)
			}
			p := e.Proxy(0)
			keep := []mutex.Option{mutex.KeepAlive(time.Hour), mutex.Patience(25 * time.Second)} // also on a busy machine
			l, err := newClient(t, e.Connect(tc.edits...), keep...).Lock(t.Context(), "a")
			require.NoError(t, err)
			c := newClient(t, through(e, p, tc.edits...))
			got := waiting(t.Context(), c, "a")
			stillWaits(t, got, 300*time.Millisecond)
			tc.fault(t, e, p)
			other, err := newClient(t, e.Client).Lock(t.Context(), "b")
			require.NoError(t, err)
			later := waiting(t.Context(), c, "b") // on the stream of the first
			stillWaits(t, got, 300*time.Millisecond)
			require.NoError(t, l.Held())
			require.NoError(t, l.Unlock(t.Context()))
			require.NoError(t, other.Unlock(t.Context()))
			takesOver(t, got)
			takesOver(t, later)
		})
	}
}

// TestLostMember kills the member that a waiter and a holder are connected to.
func TestLostMember(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{Members: 3})
	l, err := newClient(t, e.Connect(), mutex.KeepAlive(time.Hour), mutex.Patience(time.Minute)).Lock(t.Context(), "a")
	require.NoError(t, err)
	got := waiting(t.Context(), newClient(t, e.Connect()), "a")
	for i := range 3 {
		stillWaits(t, got, 200*time.Millisecond)
		e.Kill(i)
		require.NoError(t, l.Alive(t.Context()))
		require.NoError(t, e.Restart(t.Context()))
	}
	require.NoError(t, l.Held())
	require.NoError(t, l.Unlock(t.Context()))
	takesOver(t, got)
}

// TestUnreachable cuts a holder off until its lock is lost. It stops before its deadline, its Unlock says so
// without etcd, and releases the lock when etcd is back. The patience has room for a renewal that fails on a busy machine.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	e := shared.Start(t)
	for name, fault := range map[string]func(*localetcd.Proxy){
		"silent": (*localetcd.Proxy).Blackhole, "cut": (*localetcd.Proxy).Cut, "no answers": (*localetcd.Proxy).HoldReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := e.Proxy(0)
			c := newClient(t, through(e, p), mutex.Prefix(e.Prefix), mutex.KeepAlive(time.Hour), mutex.Patience(25*time.Second))
			l, err := c.Lock(t.Context(), name)
			require.NoError(t, err)
			fault(p)
			resp, err := e.Client.Get(t.Context(), e.Prefix+name+"/auto_unlock_at")
			require.NoError(t, err)
			held := l.Context(t.Context())
			stopsInTime(t, held, l)
			require.ErrorIs(t, done(t, held), mutex.ErrUnreachable)
			require.True(t, l.Deadline().Before(seconds(t, string(resp.Kvs[0].Value))), "stopped too late")
			if name != "no answers" { // with them, the release of a lost lock arrives at once
				require.Contains(t, e.Keys(""), name+"/uuid")
			}
			require.ErrorIs(t, l.Unlock(t.Context()), mutex.ErrUnreachable)
			require.NoError(t, p.Heal())
			etcdtest.Eventually(t, func() bool { return !slices.Contains(e.Keys(""), name+"/uuid") }, "not released")
		})
	}
}

// stopsInTime waits until the context has ended. Each look at it after the deadline of the lock must
// show that, however late the machine lets the holder look.
func stopsInTime(t *testing.T, held context.Context, l *mutex.Lock) {
	t.Helper()
	for {
		looked := time.Now()
		if held.Err() != nil {
			return
		}
		require.True(t, looked.Before(l.Deadline()), "stopped too late")
		<-time.After(20 * time.Millisecond)
	}
}

// TestFullStore fills etcd: no lock is taken, no renewal goes through, and a lock can be
// released. The patience has room for a busy machine, on which an answer takes seconds.
func TestFullStore(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{QuotaBackendBytes: 4 << 20})
	c := newClient(t, e.Client, mutex.KeepAlive(time.Hour), mutex.Patience(25*time.Second))
	kept, err := c.Lock(t.Context(), "kept")
	require.NoError(t, err)
	released, err := c.Lock(t.Context(), "released")
	require.NoError(t, err)
	free := e.Fill()
	_, err = c.TryLock(t.Context(), "new")
	require.ErrorIs(t, err, mutex.ErrNoSpace)
	require.NoError(t, released.Unlock(t.Context()))
	require.ErrorIs(t, done(t, kept.Context(t.Context())), mutex.ErrNoSpace)
	require.ErrorIs(t, kept.Unlock(t.Context()), mutex.ErrNoSpace)
	etcdtest.Eventually(t, func() bool { return len(e.Keys("")) == 0 }, "not released")
	free()
	l, err := c.TryLock(t.Context(), "new")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(t.Context()))
}

// TestALeaderLeadsAgainAfterALostQuorum takes the quorum away for ten seconds. Nothing but the clients themselves releases
// the lock that the leader has lost: there is no daemon.
func TestALeaderLeadsAgainAfterALostQuorum(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{Members: 3})
	var clients []*mutex.Client
	for range 3 {
		clients = append(clients, newClient(t, e.Connect(), mutex.KeepAlive(time.Hour), mutex.Patience(6*time.Second)))
	}
	first, err := clients[0].Lock(t.Context(), "leader")
	require.NoError(t, err)
	e.Kill(1)
	e.Kill(2)
	outage := time.After(10 * time.Second)
	require.ErrorIs(t, done(t, first.Context(t.Context())), mutex.ErrUnreachable)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	elected := make(chan result, len(clients))
	for _, c := range clients {
		go func() {
			l, err := c.Lock(ctx, "leader")
			elected <- result{l, err}
		}()
	}
	<-outage
	require.NoError(t, e.Restart(t.Context()))
	back := time.Now()
	r := <-elected
	require.NoError(t, r.err)
	t.Logf("a leader %s after the outage", time.Since(back))
	require.Less(t, time.Since(back), etcdtest.Soon/2)
	require.Greater(t, r.l.Token(), first.Token())
	stop()
	<-elected
	<-elected
	require.NoError(t, r.l.Unlock(t.Context()))
	require.ErrorIs(t, first.Unlock(t.Context()), mutex.ErrUnreachable)
}
