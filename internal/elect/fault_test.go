package elect

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A leader that is cut off is replaced, and finds out by itself that it leads no more.
func TestLeaderVanishes(t *testing.T) {
	for name, fault := range map[string]func(*localetcd.Proxy){
		"cut": (*localetcd.Proxy).Cut, "hung": (*localetcd.Proxy).Blackhole, "deaf": (*localetcd.Proxy).HoldReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			client, p := w.proxied()
			old := w.run(client, "old", quick)
			w.leads(old)
			next := w.run(w.client(), "next", quick)
			w.waits(next)

			fault(p)
			w.leads(next)
			w.eventually("the old one leads no more", func() bool { return !old.Leader() })

			require.NoError(t, p.Heal())
			w.waits(old)
			w.eventually("the old one knows the new", func() bool { return old.Status().Holder == "next" })
			require.False(t, old.Leader())
			next.stop(t)
			w.leads(old)
		})
	}
}

// A short interruption costs the leader nothing.
func TestConnectionBreaksForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	client, p := w.proxied()
	r := w.run(client, "r", slow)
	w.leads(r)
	p.Cut()
	require.NoError(t, p.Heal())
	w.throughout(slow+2*time.Second, "still leading", r.Leader)
	require.Zero(t, r.log.count(lost))
}

func TestLeaderLosesItsKey(t *testing.T) {
	for name, take := range map[string]func(*world, *clientv3.GetResponse) error{
		"key deleted": func(w *world, own *clientv3.GetResponse) error {
			_, err := w.direct.Delete(w.ctx(), string(own.Kvs[0].Key))
			return err
		},
		"key replaced": func(w *world, own *clientv3.GetResponse) error {
			_, err := w.direct.Put(w.ctx(), string(own.Kvs[0].Key), "somebody")
			return err
		},
		"lease revoked": func(w *world, own *clientv3.GetResponse) error {
			_, err := w.direct.Revoke(w.ctx(), clientv3.LeaseID(own.Kvs[0].Lease))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			r := w.run(w.client(), "r", quick)
			w.leads(r)
			own, err := w.direct.Get(w.ctx(), w.keyOf(r))
			require.NoError(t, err)
			require.NoError(t, take(w, own))
			w.eventually("noticed", func() bool { return r.log.count(warned) == 1 })
			require.Equal(t, 1, r.log.count(lost))
			_, err = w.direct.Delete(w.ctx(), string(own.Kvs[0].Key))
			require.NoError(t, err)
			w.leads(r)
		})
	}
}

// A campaign whose session died stays blocked and then returns nil without a key
// (etcd#19597); so does one whose key was deleted.
func TestWaitingReplicaLosesItsKey(t *testing.T) {
	for name, take := range map[string]func(*world, *replica) error{
		"lease revoked": func(w *world, r *replica) error {
			before := w.keyOf(r)
			resp, err := w.direct.Get(w.ctx(), before)
			require.NoError(w.t, err)
			_, err = w.direct.Revoke(w.ctx(), clientv3.LeaseID(resp.Kvs[0].Lease))
			w.eventually("another key, while the leader leads", func() bool { k := w.keyOf(r); return k != "" && k != before })
			return err
		},
		"key deleted": func(w *world, r *replica) error {
			_, err := w.direct.Delete(w.ctx(), w.keyOf(r))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			a := w.run(w.client(), "a", quick)
			w.leads(a)
			b := w.run(w.client(), "b", quick)
			w.waits(b)
			require.NoError(t, take(w, b))
			require.False(t, b.Leader())
			a.stop(t)
			w.leads(b)
			require.Equal(t, 1, b.log.count(failed), "the campaign without a key won nothing")
		})
	}
}

// A call fails or hangs while the rest of etcd answers.
func TestCallsFail(t *testing.T) {
	refused := func(context.Context) error { return errors.New("refused") }
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, tt := range map[string]struct {
		method string
		fail   func(context.Context) error
	}{
		"a grant is refused": {"LeaseGrant", refused},
		"a grant hangs":      {"LeaseGrant", hangs},
		"a put is refused":   {"Txn", refused},
		"a put hangs":        {"Txn", hangs},
		"a read is refused":  {"Range", refused},
		"a read hangs":       {"Range", hangs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			var closed atomic.Bool
			r := w.run(w.obstructed(tt.method, &closed, tt.fail), "r", quick, func(o *Options) { o.RequestTimeout = time.Second })
			w.leads(r)
			closed.Store(true)
			_, err := w.direct.Delete(w.ctx(), w.keyOf(r))
			require.NoError(t, err)
			w.eventually("failed twice", func() bool { return r.log.count(failed) >= 2 })
			require.False(t, r.Leader())
			closed.Store(false)
			w.leads(r)
		})
	}
}

// What decides is the repeated read, so watches may hang.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	var closed atomic.Bool
	closed.Store(true)
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	a := w.run(w.client(), "a", quick)
	w.leads(a)
	b := w.run(w.obstructed("Watch", &closed, hangs), "b", quick)
	w.waits(b)
	a.stop(t)
	w.leads(b)
	require.Zero(t, b.log.count(failed))
}

func TestEtcdAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	w.cluster.Kill(0)
	r := w.run(w.client(), "r", quick)
	w.eventually("tried", func() bool { return r.log.count(failed) >= 2 })
	require.False(t, r.Leader())
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
	w.cluster.Kill(0)
	w.eventually("no leader", func() bool { return !r.Leader() })
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
}

// No call that hangs prolongs Run, whether the replica leads, waits, or starts.
func TestStopWhileEtcdHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	client, p := w.proxied()
	patient := func(o *Options) { o.RequestTimeout = long }
	leader := w.run(client, "leader", slow, patient)
	w.leads(leader)
	waiting := w.run(client, "waiting", slow, patient)
	w.waits(waiting)
	p.Blackhole()
	starting := w.run(client, "starting", slow, patient)
	for _, r := range []*replica{leader, waiting, starting} {
		r.stop(t)
	}
}

// fill fills etcd up to its quota.
func (w *world) fill() {
	w.t.Helper()
	var err error
	for err == nil {
		_, err = w.direct.Put(w.ctx(), "/filler", strings.Repeat("x", 256<<10))
	}
	require.ErrorIs(w.t, err, rpctypes.ErrNoSpace)
}

// Without space no lease is granted: no leader, one warning, and no end of retries.
func TestNoSpaceAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	w.fill()
	r := w.run(w.client(), "r", quick)
	w.eventually("tried again", func() bool { return r.log.count(failed) >= 4 })
	require.False(t, r.Leader())
	require.Equal(t, 1, r.log.count(warned))

	resp, err := w.direct.Delete(w.ctx(), "/filler")
	require.NoError(t, err)
	_, err = w.direct.Compact(w.ctx(), resp.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = w.direct.Defragment(w.ctx(), w.cluster.Endpoints()[0])
	require.NoError(t, err)
	_, err = w.direct.AlarmDisarm(w.ctx(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	w.leads(r)
}

// At full quota a leader continues to lead, and hands over to one that waits.
func TestNoSpaceWhileLeading(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	a := w.run(w.client(), "a", slow)
	w.leads(a)
	b := w.run(w.client(), "b", slow)
	w.waits(b)
	w.fill()
	w.throughout(slow/2, "still leading", a.Leader)
	a.stop(t)
	require.Empty(t, w.keyOf(a))
	w.leads(b)
}

// A role for the election's keys suffices, and tokens that expire cost neither the leader
// its key nor the next one its turn, even if its client has an old watch stream (etcd#17623).
func TestAuthWithNarrowRoleAndShortTokens(t *testing.T) {
	t.Parallel()
	const tokenTTL = 2 * time.Second
	w := newWorld(t, localetcd.Options{AuthTokenTTL: tokenTTL})
	w.guard()
	as := func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }
	a := w.run(w.client(as), "a", slow)
	w.leads(a)
	old := w.client(as)
	old.Watch(w.ctx(), key+"/x")
	w.throughout(2*tokenTTL, "leading past the first tokens", a.Leader)
	b := w.run(old, "b", slow)
	w.waits(b)
	w.throughout(4*tokenTTL, "one leader", func() bool { return a.Leader() && !b.Leader() })
	require.Zero(t, a.log.count(failed))
	a.stop(t)
	require.Empty(t, w.keyOf(a))
	w.leads(b)
}

// guard turns authentication on, with a user for the election and nothing else.
func (w *world) guard() {
	w.t.Helper()
	for _, user := range []string{"root", "unlocker"} {
		_, err := w.direct.RoleAdd(w.ctx(), user)
		require.NoError(w.t, err)
		_, err = w.direct.UserAdd(w.ctx(), user, "pw")
		require.NoError(w.t, err)
		_, err = w.direct.UserGrantRole(w.ctx(), user, user)
		require.NoError(w.t, err)
	}
	_, err := w.direct.RoleGrantPermission(w.ctx(), "unlocker", key+"/", clientv3.GetPrefixRangeEnd(key+"/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(w.t, err)
	_, err = w.direct.AuthEnable(w.ctx())
	require.NoError(w.t, err)
	w.direct = w.client(func(c *clientv3.Config) { c.Username, c.Password = "root", "pw" })
}
