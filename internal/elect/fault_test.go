package elect

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A leader that vanishes, connections closed or hanging, is replaced in time, and
// knows that it leads no more before another does.
func TestLeaderVanishes(t *testing.T) {
	for name, fault := range map[string]func(*localetcd.Proxy){
		"cut": (*localetcd.Proxy).Cut, "hung": (*localetcd.Proxy).Blackhole, "deaf": (*localetcd.Proxy).HoldReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			p := w.proxy()
			old := w.run(newClient(t, p.Addr()), "old", quick)
			w.leads(old)
			next := w.run(newClient(t, w.cluster.Addr(0)), "next", quick)
			w.waits(next)

			fault(p)
			var gave time.Duration
			began := time.Now()
			took := w.eventually("another leads", func() bool {
				leads := next.Leader() // before the old one is asked
				still := old.Leader()
				require.False(t, leads && still, "two leaders")
				if !still && gave == 0 {
					gave = time.Since(began)
				}
				return leads
			})
			t.Logf("given up after %s, taken over after %s", gave, took)
			require.Less(t, gave, quick)
			require.Less(t, took, quick+2*time.Second)

			require.NoError(t, p.Heal())
			w.eventually("the old one stands in line again", func() bool {
				require.False(t, old.Leader())
				return w.keyOf(old) != "" && old.Status().Holder == "next"
			})
		})
	}
}

func TestHungLeaderStopsByItselfAndLeadsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	p := w.proxy()
	r := w.run(newClient(t, p.Addr()), "r", quick)
	w.leads(r)
	p.Blackhole()
	began := time.Now()
	w.eventually("no leader", func() bool { return !r.Leader() })
	w.eventually("the term has ended", func() bool { return r.reigning.Load() == nil })
	require.Less(t, time.Since(began), quick)
	require.NoError(t, p.Heal())
	w.leads(r)
}

// The answer to a renewal counts from when the renewal was sent.
func TestLateAnswerDoesNotProlong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	p := w.proxy()
	r := w.run(newClient(t, p.Addr()), "r", 4*time.Second)
	w.leads(r)
	reign := r.reigning.Load()
	first := reign.confirmed.Load()
	w.eventually("renewed", func() bool { return reign.confirmed.Load() != first })
	p.HoldReplies()
	held := reign.confirmed.Load()
	w.eventually("the next renewal is on its way", func() bool { return time.Since(*held) > 2*time.Second })
	require.Same(t, held, reign.confirmed.Load())
	healed := time.Now()
	require.NoError(t, p.Heal())
	w.eventually("answered", func() bool { return reign.confirmed.Load() != held })
	require.Less(t, *reign.confirmed.Load(), healed.Add(-200*time.Millisecond))
}

func TestForeignDeletionOfTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	r := w.run(newClient(t, w.cluster.Addr(0)), "r", slow)
	w.leads(r)
	before := w.keyOf(r)
	_, err := w.direct.Delete(w.ctx(), before)
	require.NoError(t, err)
	require.Less(t, w.eventually("noticed", func() bool { return !r.Leader() }), time.Second)
	w.leads(r)
	require.NotEqual(t, before, w.keyOf(r))
	require.Equal(t, 1, r.log.count(warned))
}

// With watches that hang silently: the repeated read suffices.
func TestWithoutAnyWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	blind := gated(func(ctx context.Context, method string) error {
		if method == "Watch" {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	a := w.run(newClient(t, w.cluster.Addr(0), blind), "a", quick)
	w.leads(a)
	b := w.run(newClient(t, w.cluster.Addr(0), blind), "b", quick)
	w.waits(b)
	_, err := w.direct.Delete(w.ctx(), w.keyOf(a))
	require.NoError(t, err)
	require.Less(t, w.eventually("the loss is noticed", func() bool { return !a.Leader() }), quick)
	require.Less(t, w.leads(b), quick)
	w.waits(a)
	b.stop(t)
	require.Less(t, w.leads(a), quick)
}

// A session that dies while its replica waits must not make it a leader without a
// key (etcd#19597).
func TestSessionDiesWhileWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	a := w.run(newClient(t, w.cluster.Addr(0)), "a", slow)
	w.leads(a)
	b := w.run(newClient(t, w.cluster.Addr(0)), "b", slow)
	w.waits(b)
	before := w.keyOf(b)
	resp, err := w.direct.Get(w.ctx(), before)
	require.NoError(t, err)
	_, err = w.direct.Revoke(w.ctx(), clientv3.LeaseID(resp.Kvs[0].Lease))
	require.NoError(t, err)
	took := w.eventually("in line anew", func() bool {
		require.False(t, b.Leader())
		k := w.keyOf(b)
		return k != "" && k != before
	})
	require.Less(t, took, 2*time.Second)
	a.stop(t)
	require.Less(t, w.leads(b), time.Second)
	require.NotEmpty(t, w.keyOf(b))
}

// A watch that etcd refused is tried again.
func TestWatchIsRefusedAtFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	a := w.run(newClient(t, w.cluster.Addr(0)), "a", slow)
	w.leads(a)
	var asked atomic.Int64
	b := w.run(newClient(t, w.cluster.Addr(0), gated(func(_ context.Context, method string) error {
		if method == "Watch" && asked.Add(1) == 1 {
			return errors.New("refused")
		}
		return nil
	})), "b", 6*time.Second)
	w.waits(b)
	w.eventually("asked again", func() bool { return asked.Load() == 2 })
	a.stop(t)
	require.Less(t, w.leads(b), time.Second)
}

// A deletion between the first look and the watch is not overlooked.
func TestWatchComesLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	a := w.run(newClient(t, w.cluster.Addr(0)), "a", slow)
	w.leads(a)
	asked, open := make(chan struct{}), make(chan struct{})
	b := w.run(newClient(t, w.cluster.Addr(0), gated(func(_ context.Context, method string) error {
		if method == "Watch" {
			close(asked)
			<-open
		}
		return nil
	})), "b", slow)
	<-asked
	w.eventually("looked", func() bool { return b.Status().Holder == "a" })
	a.stop(t)
	close(open)
	require.Less(t, w.leads(b), time.Second)
}

// The lease lives, but etcd lets nobody see whether the key does.
func TestKeyCannotBeRead(t *testing.T) {
	for name, fail := range map[string]func(context.Context) error{
		"refused": func(context.Context) error { return errors.New("refused") },
		"hangs":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			r, closed := w.runClosable("Range", fail)
			closed.Store(false)
			w.leads(r)
			closed.Store(true)
			w.throughout(quick/2, "one failed read is no loss", r.Leader)
			require.Less(t, w.eventually("lost", func() bool { return !r.Leader() }), 2*quick)
			closed.Store(false)
			w.leads(r)
		})
	}
}

// runClosable runs a replica for which a method fails as long as closed is set,
// which it is at the start.
func (w *world) runClosable(method string, fail func(context.Context) error) (*replica, *atomic.Bool) {
	closed := &atomic.Bool{}
	closed.Store(true)
	return w.run(newClient(w.t, w.cluster.Addr(0), gated(func(ctx context.Context, m string) error {
		if m == method && closed.Load() {
			return fail(ctx)
		}
		return nil
	})), "r", quick), closed
}

func TestKeyCannotBePut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	r, closed := w.runClosable("Put", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	took := w.eventually("gave up", func() bool { return r.log.count(warned) == 1 })
	require.Less(t, took, patience+time.Second)
	require.False(t, r.Leader())
	closed.Store(false)
	w.leads(r)
}

// The answer to a renewal tells that the lease is gone before any look does.
func TestLeaseIsRevokedWhileTheKeyCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	r, closed := w.runClosable("Range", func(context.Context) error { return errors.New("refused") })
	closed.Store(false)
	w.leads(r)
	closed.Store(true)
	_, err := w.direct.Revoke(w.ctx(), r.reigning.Load().lease)
	require.NoError(t, err)
	require.Less(t, w.eventually("lost", func() bool { return !r.Leader() }), quick/2)
}

func TestEtcdAbsentAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	w.cluster.Kill(0)
	r := w.run(newClient(t, w.cluster.Addr(0)), "r", quick)
	w.eventually("tried", func() bool { return r.log.count(warned)+r.log.count(repeated) >= 2 })
	require.False(t, r.Leader())
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
}

func TestEtcdKilledAndRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	r := w.run(newClient(t, w.cluster.Addr(0)), "r", quick)
	w.leads(r)
	w.cluster.Kill(0)
	require.Less(t, w.eventually("no leader", func() bool { return !r.Leader() }), quick)
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
}

// A short interruption costs the leader nothing.
func TestConnectionBreaksForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	p := w.proxy()
	r := w.run(newClient(t, p.Addr()), "r", slow)
	w.leads(r)
	reign := r.reigning.Load()
	for range 2 {
		p.Cut()
		require.NoError(t, p.Heal())
		before := reign.confirmed.Load()
		w.eventually("renewed", func() bool {
			require.True(t, r.Leader())
			return reign.confirmed.Load() != before
		})
	}
	require.Same(t, reign, r.reigning.Load())
}

func TestStopWhileEtcdHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	p := w.proxy()
	leader := w.run(newClient(t, p.Addr()), "leader", slow)
	w.leads(leader)
	waiting := w.run(newClient(t, p.Addr()), "waiting", slow)
	w.waits(waiting)
	p.Blackhole()
	starting := w.run(newClient(t, p.Addr()), "starting", slow)
	took := w.eventually("gave up", func() bool { return starting.log.count(warned) == 1 })
	require.Less(t, took, patience+time.Second)
	for _, r := range []*replica{leader, waiting, starting} {
		r.stop(t)
	}
}
