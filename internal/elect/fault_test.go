package elect

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// A leader that is cut off is replaced, and notices by itself that it no longer leads.
func TestLeaderVanishes(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]memetcd.Faults{
		"cut": {Refuse: true}, "black hole": memetcd.Unreachable(), "without replies": {HoldAnswers: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, w *world) {
				link := w.link()
				old := w.run(link.Client, "old", ttl)
				w.leads(old)
				next := w.run(w.client(), "next", ttl)
				w.waits(next)

				w.throughout(5*ttl, "one leads", func() bool { return old.Leader() && !next.Leader() })
				link.Set(fault)
				began := time.Now()
				w.leads(next)
				w.eventually("the old leader no longer leads", func() bool { return !old.Leader() })
				require.LessOrEqual(t, time.Since(began), ttl+time.Second, "etcd's client looks at its leases twice a second")

				link.Set(memetcd.Faults{})
				w.waits(old)
				w.eventually("the old leader knows the new one", func() bool { return old.Status().Holder == "next" })
				require.False(t, old.Leader())
				next.stop(t)
				require.Less(t, w.leads(old), time.Second)
			})
		})
	}
}

// A short interruption does not end the leadership.
func TestConnectionBreaksForAMoment(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		link := w.link()
		r := w.run(link.Client, "r", ttl)
		w.leads(r)
		for range 10 {
			link.Set(memetcd.Faults{Refuse: true})
			<-time.After(ttl / 20)
			link.Set(memetcd.Faults{})
			w.throughout(2*ttl, "still leading", r.Leader)
		}
		require.Zero(t, count(r.log, lost))
	})
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
			bubble(t, func(t *testing.T, w *world) {
				a := w.run(w.client(), "a", ttl)
				w.leads(a)
				b := w.run(w.client(), "b", ttl)
				before := w.waits(b)
				require.NoError(t, remove(w, before))
				if name == "lease revoked" {
					w.eventually("b rejoins", func() bool { kv := w.keyOf(b); return kv != nil && kv.Lease != before.Lease })
				}
				require.False(t, b.Leader())
				a.stop(t)
				w.leads(b)
				require.Positive(t, count(b.log, failed), "a campaign without a key must fail")

				c := w.run(w.client(), "c", ttl)
				w.waits(c)
				require.NoError(t, remove(w, w.waits(b)))
				require.Less(t, w.leads(c), time.Second)
				require.LessOrEqual(t, w.eventually("b no longer leads", func() bool { return count(b.log, lost) > 0 }), ttl/3+poll)
				w.waits(b)
			})
		})
	}
}

// Requests of one kind hang while others are answered.
func TestCallsHang(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]memetcd.Message{
		"grant": &etcdserverpb.LeaseGrantRequest{}, "transaction": &etcdserverpb.TxnRequest{}, "range": &etcdserverpb.RangeRequest{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, w *world) {
				client, hung := w.hanging(kind)
				r := w.run(client, "r", ttl, func(o *Options) { o.RequestTimeout = 2 * time.Second })
				w.leads(r)
				kv := w.waits(r)
				hung.Store(true)
				_, err := w.direct.Delete(w.ctx(), string(kv.Key))
				require.NoError(t, err)
				w.eventually("failed", func() bool { return count(r.log, failed) >= 1 && !r.Leader() })
				w.throughout(10*ttl, "without a key", func() bool { return !r.Leader() })
				hung.Store(false)
				w.leads(r)
			})
		})
	}
}

// The repeated read decides who leads, so watches may hang.
func TestWatchHangs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		a := w.run(w.client(), "a", ttl)
		w.leads(a)
		client, hung := w.hanging(&etcdserverpb.WatchRequest{})
		hung.Store(true)
		b := w.run(client, "b", ttl)
		w.waits(b)
		a.stop(t)
		require.LessOrEqual(t, w.leads(b), ttl/3+poll)
		require.Zero(t, count(b.log, failed))
		c := w.run(w.client(), "c", ttl)
		w.waits(c)
		_, err := w.direct.Delete(w.ctx(), string(w.waits(b).Key))
		require.NoError(t, err)
		w.leads(c)
		w.waits(b)
	})
}

func TestEtcdDown(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		w.memory.Set(memetcd.Faults{Refuse: true})
		r := w.run(w.client(), "r", ttl, func(o *Options) { o.RequestTimeout = 5 * time.Second })
		w.eventually("tried", func() bool { return count(r.log, failed) >= 2 })
		require.False(t, r.Leader())
		w.memory.Set(memetcd.Faults{})
		require.LessOrEqual(t, w.leads(r), 5*time.Second, "the longest pause")
		w.memory.Set(memetcd.Faults{Refuse: true})
		require.LessOrEqual(t, w.eventually("no leader", func() bool { return !r.Leader() }), ttl+ttl/3)
		w.memory.Set(memetcd.Faults{})
		w.leads(r)
	})
}

// A member without a leader refuses leases and reads, so that there is no leader of replicas either.
func TestNoLeaderOfEtcd(t *testing.T) {
	t.Parallel()
	bubble(t, func(_ *testing.T, w *world) {
		r := w.run(w.client(), "r", ttl)
		w.leads(r)
		w.memory.Set(memetcd.Faults{NoLeader: true})
		w.eventually("no longer leads", func() bool { return !r.Leader() })
		w.memory.Set(memetcd.Faults{})
		w.leads(r)
	})
}

// A call that hangs does not prolong Run, whether the replica leads, waits, or starts.
func TestStopWhileEtcdHangs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		link := w.link()
		patient := func(o *Options) { o.RequestTimeout = long }
		leader := w.run(link.Client, "leader", ttl, patient)
		w.leads(leader)
		waiting := w.run(link.Client, "waiting", ttl, patient)
		w.waits(waiting)
		link.Set(memetcd.Unreachable())
		starting := w.run(link.Client, "starting", ttl, patient)
		<-time.After(time.Second)
		require.Equal(t, revokeTimeout, leader.stop(t))
		waiting.stop(t) // its lease may have ended by now
		require.Zero(t, starting.stop(t), "it has nothing to revoke")
		link.Set(memetcd.Faults{})
	})
}

// Without space etcd grants no lease: there is no leader and one warning, and retries continue.
func TestNoSpaceAtStart(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		w.memory.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true)
		r := w.run(w.client(), "r", ttl)
		w.throughout(59*time.Second, "no leader", func() bool { return !r.Leader() })
		require.Greater(t, count(r.log, failed), 15)
		require.Equal(t, 1, count(r.log, warned))
		w.memory.SetAlarm(etcdserverpb.AlarmType_NOSPACE, false)
		require.LessOrEqual(t, w.leads(r), 5*time.Second, "the longest pause")
	})
}

// At full quota a leader continues to lead. When it stops, a waiting replica leads.
func TestNoSpaceWhileLeading(t *testing.T) {
	t.Parallel()
	lead := func(t *testing.T, w *world, fill func(), stay time.Duration) {
		a := w.run(w.client(), "a", slow)
		w.leads(a)
		b := w.run(w.client(), "b", slow)
		w.waits(b)
		fill()
		w.throughout(stay, "still leading", a.Leader)
		a.stop(t)
		require.Nil(t, w.keyOf(a))
		w.leads(b)
	}
	t.Run("in memory", func(t *testing.T) {
		t.Parallel()
		bubble(t, func(t *testing.T, w *world) {
			lead(t, w, func() { w.memory.SetAlarm(etcdserverpb.AlarmType_NOSPACE, true) }, time.Minute)
		})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, localetcd.Options{QuotaBackendBytes: 2 << 20})
		lead(t, w, func() { w.etcd.Fill() }, 0)
	})
}

// When tokens expire, the leader keeps its key and the next replica is elected, even if its client
// has an old watch stream (etcd#17623).
func TestTokensExpire(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *world) {
		as := func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }
		a := w.run(w.client(as), "a", ttl)
		w.leads(a)
		old := w.client(as)
		old.Watch(w.ctx(), key+"/x")
		w.memory.ExpireTokens()
		w.throughout(2*ttl, "leading past the first tokens", a.Leader)
		b := w.run(old, "b", ttl)
		w.waits(b)
		w.memory.ExpireTokens()
		w.throughout(4*ttl, "one leader", func() bool { return a.Leader() && !b.Leader() })
		require.Zero(t, count(a.log, failed)+count(b.log, failed))
		a.stop(t)
		require.Nil(t, w.keyOf(a))
		require.Less(t, w.leads(b), time.Second)
	})
}

// A role for the keys of the election is sufficient.
func TestAuthWithNarrowRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, localetcd.Options{})
	w.guard()
	as := func(c *clientv3.Config) { c.Username, c.Password = "unlocker", "pw" }
	a := w.run(w.client(as), "a", slow)
	w.leads(a)
	b := w.run(w.client(as), "b", slow)
	w.waits(b)
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
