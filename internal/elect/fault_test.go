package elect

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// A leader that is cut off is replaced, and notices by itself that it no longer leads.
func TestLeaderVanishes(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*localetcd.Proxy){
		"cut": (*localetcd.Proxy).Cut, "black hole": (*localetcd.Proxy).Blackhole, "without replies": (*localetcd.Proxy).HoldReplies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			client, p := w.proxied()
			old := w.run(client, "old", quick)
			w.leads(old)
			next := w.run(w.client(), "next", slow)
			w.waits(next)

			fault(p)
			w.leads(next)
			w.eventually("the old leader no longer leads", func() bool { return !old.Leader() })

			require.NoError(t, p.Heal())
			w.waits(old)
			w.eventually("the old leader knows the new one", func() bool { return old.Status().Holder == "next" })
			require.False(t, old.Leader())
			next.stop(t)
			w.leads(old)
		})
	}
}

// A short interruption does not end the leadership.
func TestConnectionBreaksForAMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	client, p := w.proxied()
	r := w.run(client, "r", slow)
	w.leads(r)
	p.Cut()
	require.NoError(t, p.Heal())
	w.throughout(slow+2*time.Second, "still leading", r.Leader)
	require.Zero(t, count(r.log, lost))
}

// A campaign whose lease ended or whose key was deleted stays blocked, and then returns nil without
// a key (etcd#19597).
func TestKeyIsLost(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*world, *mvccpb.KeyValue) error{
		"key deleted": func(w *world, kv *mvccpb.KeyValue) error {
			_, err := w.direct.Delete(w.ctx(), string(kv.Key))
			return err
		},
		"lease revoked": func(w *world, kv *mvccpb.KeyValue) error {
			_, err := w.direct.Revoke(w.ctx(), clientv3.LeaseID(kv.Lease))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			a := w.run(w.client(), "a", slow)
			w.leads(a)
			b := w.run(w.client(), "b", slow)
			before := w.waits(b)
			require.NoError(t, remove(w, before))
			if name == "lease revoked" {
				w.eventually("b rejoins", func() bool { kv := w.keyOf(b); return kv != nil && kv.Lease != before.Lease })
			}
			require.False(t, b.Leader())
			a.stop(t)
			w.leads(b)
			require.Positive(t, count(b.log, failed), "a campaign without a key must fail")

			c := w.run(w.client(), "c", slow)
			w.waits(c)
			require.NoError(t, remove(w, w.waits(b)))
			w.leads(c)
			w.eventually("b no longer leads", func() bool { return count(b.log, lost) > 0 })
			w.waits(b)
		})
	}
}

// Calls of one method hang while others are answered.
func TestCallsHang(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"LeaseGrant", "Txn", "Range"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, localetcd.Options{})
			client, hung := w.hanging(method)
			r := w.run(client, "r", slow, func(o *Options) { o.RequestTimeout = 2 * time.Second })
			w.leads(r)
			kv := w.waits(r)
			hung.Store(true)
			_, err := w.direct.Delete(w.ctx(), string(kv.Key))
			require.NoError(t, err)
			w.eventually("failed twice", func() bool { return count(r.log, failed) >= 2 })
			require.False(t, r.Leader())
			hung.Store(false)
			w.leads(r)
		})
	}
}

// The repeated read decides who leads, so watches may hang.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	a := w.run(w.client(), "a", slow)
	w.leads(a)
	client, hung := w.hanging("Watch")
	hung.Store(true)
	b := w.run(client, "b", slow)
	w.waits(b)
	a.stop(t)
	w.leads(b)
	require.Zero(t, count(b.log, failed))
	c := w.run(w.client(), "c", slow)
	w.waits(c)
	_, err := w.direct.Delete(w.ctx(), string(w.waits(b).Key))
	require.NoError(t, err)
	w.leads(c)
	w.waits(b)
}

func TestEtcdDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	w.cluster.Kill(0)
	r := w.run(w.client(), "r", quick, func(o *Options) { o.RequestTimeout = 5 * time.Second })
	w.eventually("tried", func() bool { return count(r.log, failed) >= 2 })
	require.False(t, r.Leader())
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
	w.cluster.Kill(0)
	w.eventually("no leader", func() bool { return !r.Leader() })
	require.NoError(t, w.cluster.Restart(w.ctx()))
	w.leads(r)
}

// A call that hangs does not prolong Run, whether the replica leads, waits, or starts.
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

// Without space etcd grants no lease: there is no leader and one warning, and retries continue.
func TestNoSpaceAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
	w.fill()
	r := w.run(w.client(), "r", quick)
	w.eventually("tried again", func() bool { return count(r.log, failed) >= 4 })
	require.False(t, r.Leader())
	require.Equal(t, 1, count(r.log, warned))

	resp, err := w.direct.Delete(w.ctx(), "/filler")
	require.NoError(t, err)
	_, err1 := w.direct.Compact(w.ctx(), resp.Header.Revision, clientv3.WithCompactPhysical())
	_, err2 := w.direct.Defragment(w.ctx(), w.cluster.Endpoints()[0])
	_, err3 := w.direct.AlarmDisarm(w.ctx(), &clientv3.AlarmMember{})
	require.NoError(t, errors.Join(err1, err2, err3))
	w.leads(r)
}

// At full quota a leader continues to lead. When it stops, a waiting replica leads.
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
	require.Nil(t, w.keyOf(a))
	w.leads(b)
}

// A role for the keys of the election is sufficient. When tokens expire, the leader keeps its key
// and the next replica is elected, even if its client has an old watch stream (etcd#17623).
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
	require.Zero(t, count(a.log, failed)+count(b.log, failed))
	a.stop(t)
	require.Nil(t, w.keyOf(a))
	w.leads(b)
}

// guard enables authentication, with a user who has permissions for the election only.
func (w *world) guard() {
	w.t.Helper()
	for _, user := range []string{"root", "unlocker"} {
		_, err1 := w.direct.RoleAdd(w.ctx(), user)
		_, err2 := w.direct.UserAdd(w.ctx(), user, "pw")
		_, err3 := w.direct.UserGrantRole(w.ctx(), user, user)
		require.NoError(w.t, errors.Join(err1, err2, err3))
	}
	_, err := w.direct.RoleGrantPermission(w.ctx(), "unlocker", key+"/", clientv3.GetPrefixRangeEnd(key+"/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(w.t, err)
	_, err = w.direct.AuthEnable(w.ctx())
	require.NoError(w.t, err)
	w.direct = w.client(func(c *clientv3.Config) { c.Username, c.Password = "root", "pw" })
}
