package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// timeout is etcd.request_timeout, after which a silent watch counts as failed.
const timeout = etcdtest.Soon

// watching is a Watch that runs, and the changes that it has shown.
type watching struct {
	*admin.Watch
	t    *testing.T
	seen []string
}

func watch(t *testing.T, a *admin.Admin, f admin.Filter) *watching {
	t.Helper()
	require.NoError(t, f.Validate())
	list, err := a.Watch(f)
	require.NoError(t, err)
	w := &watching{Watch: list, t: t}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	<-w.Changed()
	return w
}

// await waits until exactly these changes have been shown since the last call: the names and
// states of locks.
func (w *watching) await(want ...string) {
	w.t.Helper()
	etcdtest.Eventually(w.t, func() bool {
		for _, c := range w.Changes(w.t.Context()) {
			word := c.State.String()
			if c.Gone {
				word = "gone"
			}
			if !c.Matches {
				word += "!"
			}
			w.seen = append(w.seen, c.Name+" "+word)
		}
		return len(w.seen) >= len(want)
	}, "%q", &w.seen)
	require.Equal(w.t, want, w.seen)
	w.seen = nil
}

func TestWatchShowsEachChange(t *testing.T) {
	t.Parallel()
	e := newWorld(t)
	var passed atomic.Int64 // in hours
	e.SetNow(func() time.Time { return time.Now().Add(time.Duration(passed.Load()) * time.Hour) })
	e.take("b", 10*time.Hour, 20*time.Hour)
	e.take("a", -time.Minute, 20*time.Hour)
	w := watch(t, e.Admin, admin.Filter{Query: api.Query{Match: "{a,b,c}"}, Sort: "urgency"})
	w.await("a overdue", "b held")
	e.take("other", time.Hour, 2*time.Hour)
	e.take("c", time.Hour, 2*time.Hour)
	w.await("c held")
	passed.Store(1) // and no key changes
	w.await("c overdue")
	passed.Store(2)
	w.await("c expired")
	e.Set("c", "auto_unlock_at", in(10*time.Hour), "alert_at", in(10*time.Hour))
	w.await("c held")
	_, err := e.Client.Delete(t.Context(), "/mutexes/c/", clientv3.WithPrefix())
	require.NoError(t, err)
	w.await("c gone!")
	e.take("c", 10*time.Hour, 20*time.Hour)
	w.await("c held")
	require.Empty(t, w.Changes(w.t.Context()))
}

func TestWatchShowsWhatLeavesTheList(t *testing.T) {
	t.Parallel()
	e := newWorld(t)
	e.take("a", time.Hour, 2*time.Hour)
	e.take("b", -time.Minute, 2*time.Hour)
	w := watch(t, e.Admin, admin.Filter{Query: api.Query{States: []string{"overdue"}}})
	w.await("b overdue")
	e.Set("b", "alert_at", in(time.Hour))
	w.await("b held!")
	e.Set("a", "alert_at", in(time.Second))
	w.await("a overdue")
	_, err := e.Client.Delete(t.Context(), "/mutexes/a/", clientv3.WithPrefix())
	require.NoError(t, err)
	w.await("a gone!")
}

// What happened while the watch was away is shown, and nothing twice.
func TestWatchRelists(t *testing.T) {
	for name, fault := range map[string]memetcd.Faults{"cut": {Refuse: true}, "silent": memetcd.Unreachable()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *world, _ *memetcd.Cluster, link *memetcd.Link) {
				t := e.t
				for _, name := range []string{"same", "gone", "taken"} {
					e.take(name, time.Hour, time.Hour)
				}
				w := watch(t, e.Admin, admin.Filter{})
				w.await("gone held", "same held", "taken held")
				began := time.Now()
				link.Set(fault)
				for _, trouble := w.Trouble(); trouble == nil || !strings.HasPrefix(trouble.Error(), "etcd at 127.0.0.1:2379"); _, trouble = w.Trouble() {
					require.Less(t, time.Since(began), 2*timeout+time.Minute)
					<-time.After(time.Second)
				}
				since, _ := w.Trouble()
				require.WithinDuration(t, began, since, 2*time.Second, "the last progress notice")
				require.Len(t, w.View(t.Context(), 10).Locks, 3, "what was known")
				require.Error(t, w.View(t.Context(), 10).Trouble)
				_, err := e.Client.Delete(t.Context(), "/mutexes/gone/", clientv3.WithPrefix())
				require.NoError(t, err)
				e.Set("taken", "uuid", "next")
				now := time.Now()
				revision := e.Put(e.Lock("new", now.Add(time.Hour), now.Add(time.Hour))...)
				_, err = e.Client.Compact(t.Context(), revision) // what the watch would continue from
				require.NoError(t, err)
				link.Set(memetcd.Faults{})
				etcdtest.Eventually(t, func() bool { _, trouble := w.Trouble(); return trouble == nil })
				changes := w.Changes(t.Context())
				slices.SortFunc(changes, func(a, b admin.Change) int { return strings.Compare(a.Name, b.Name) })
				require.Len(t, changes, 3)
				require.True(t, changes[0].Name == "gone" && changes[0].Gone && changes[1].Name == "new" && changes[2].UUID() == "next")
				_, err = e.Client.Delete(t.Context(), "/mutexes/new/", clientv3.WithPrefix())
				require.NoError(t, err)
				w.await("new gone!")
				e.take("gone", time.Hour, time.Hour)
				w.await("gone held")
			})
		})
	}
}

// A restored etcd is listed again, and what is the same is not shown again.
func TestWatchAfterARestore(t *testing.T) {
	bubble(t, func(e *world, cluster *memetcd.Cluster, link *memetcd.Link) {
		t := e.t
		e.take("same", time.Hour, time.Hour)
		snapshot := cluster.Snapshot()
		e.take("lost", time.Hour, time.Hour)
		w := watch(t, e.Admin, admin.Filter{})
		w.await("lost held", "same held")
		require.Len(t, w.View(t.Context(), 10).Locks, 2)
		link.Set(memetcd.Unreachable())
		cluster.Restore(snapshot, memetcd.Restored{})
		e.take("new", time.Hour, time.Hour)
		link.Set(memetcd.Faults{})
		w.await("new held", "lost gone!")
		require.Equal(t, 2, w.View(t.Context(), 10).Total)
	})
}

func TestWatchWithoutEtcd(t *testing.T) {
	t.Parallel()
	a := open(t, func(c *config.Config) { c.Etcd.Endpoints = []string{"127.0.0.1:1"} })
	w, err := a.Watch(admin.Filter{})
	require.NoError(t, err)
	require.ErrorContains(t, w.Run(t.Context()), "etcd at 127.0.0.1:1: no connection")
}

func TestView(t *testing.T) {
	t.Parallel()
	e := newWorld(t)
	for i := range 50 {
		e.take(fmt.Sprintf("%02d", (i*37)%50), time.Hour, 2*time.Hour)
	}
	e.take("late", -time.Minute, time.Hour)
	w := watch(t, e.Admin, admin.Filter{Query: api.Query{States: []string{"held", "overdue"}}, Sort: "urgency"})
	e.Set("undated", "uuid", "u")
	etcdtest.Eventually(t, func() bool { return w.View(t.Context(), 3).Total == 52 })
	v := w.View(t.Context(), 3)
	require.Equal(t, "late", v.Locks[0].Name)
	require.Equal(t, []int{3, 52, 51}, []int{len(v.Locks), v.Total, v.Matched})
	require.Equal(t, []int{50, 1, 0, 0}, []int{v.States[protocol.Held], v.States[protocol.Overdue], v.States[protocol.Expired], v.States[protocol.Undated]})
	for n := range 60 {
		l, _ := e.List(t.Context(), admin.Filter{Query: api.Query{States: []string{"held", "overdue"}, Limit: n + 1}, Sort: "urgency"})
		for i, k := range slices.Collect(l.Locks()) {
			require.Equal(t, k.Name, w.View(t.Context(), n+1).Locks[i].Name)
		}
	}
	_, err := e.Client.Delete(t.Context(), "/mutexes/late/", clientv3.WithPrefix())
	require.NoError(t, err)
	etcdtest.Eventually(t, func() bool { return w.View(t.Context(), 3).Total == 51 })
}

func TestSort(t *testing.T) {
	t.Parallel()
	e := newWorld(t, func(c *config.Config) { c.Policies = []config.Policy{{Match: "off/**", Mode: "off"}} })
	e.Set("off/k", "uuid", "u", "auto_unlock_at", in(-24*time.Hour))
	e.Set("a", "uuid", "u", "hostname", "y", "locked_at", in(-time.Minute), "alert_at", in(time.Hour), "auto_unlock_at", in(5*time.Hour))
	e.Set("b", "uuid", "u", "hostname", "x", "owner", "q", "locked_at", in(-time.Hour), "alert_at", in(-time.Hour), "auto_unlock_at", in(4*time.Hour))
	e.Set("c", "uuid", "u", "owner", "p")
	for order, want := range map[string]string{
		"": "a b c off/k", "name": "a b c off/k", "urgency": "b c off/k a", "hostname": "b a c off/k", "owner": "c b a off/k",
		"held": "b a c off/k", "alert": "b a c off/k", "unlock": "off/k b a c",
	} {
		_, names := e.list(admin.Filter{Sort: order})
		require.Equal(t, want, strings.Join(names, " "), order)
	}
	require.ErrorContains(t, admin.Filter{Sort: "age"}.Validate(), "--sort: must be one of name, urgency")
}

// slow is a host whose clock is 95 s slow.
const slow = -95 * time.Second

// renewing has a holder of a slow host and one of another host renew their locks, each 40 s for 2 minutes more, and
// calls look each second for 5 minutes. A lock was left by a holder that died, and one by a holder that renewed it
// once before.
func renewing(w *world, look func(i int)) {
	w.take("dead", -time.Hour, 90*time.Second)
	fields := func(name, host string, clock time.Duration) []string {
		return []string{"uuid", "u-" + name, "hostname", host, "locked_at", in(clock), "alive_at", in(clock),
			"alert_at", in(clock + 2*time.Minute), "auto_unlock_at", in(clock + 2*time.Minute)}
	}
	w.Set("well", fields("well", "worker-2", 0)...)
	w.Set("died", fields("died", "worker-3", 0)...)
	w.Set("slow", fields("slow", "worker-7", slow)...)
	for i := range 300 {
		<-time.After(time.Second)
		if i%40 == 0 {
			w.Set("well", fields("well", "worker-2", 0)[6:]...)
		}
		if i == 3 {
			w.Set("died", fields("died", "worker-3", 0)[6:]...)
		}
		if i%40 == 3 {
			w.Set("slow", fields("slow", "worker-7", slow)[6:]...)
		}
		look(i)
	}
}

// A holder that renews in time is not called expired because its clock is slow, by one listing after the other, which
// show no clock. One that died is, if it had renewed its lock after its patience.
func TestListOfASlowHostThatRenews(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		since := map[string]int{}
		renewing(w, func(i int) {
			l, err := w.List(w.t.Context(), admin.Filter{Sort: "urgency"})
			require.NoError(w.t, err)
			for k := range l.Locks() {
				if _, seen := since[k.Name]; !seen && k.State == "expired" {
					since[k.Name] = i + 1
				}
				past := 0.0 // the offset that is named
				if k.State == "held" {
					past = min(past, k.AutoUnlockAt.Sub(l.At).Seconds())
				}
				require.InDelta(w.t, past, k.ClockOffset, 0.001)
			}
		})
		require.Equal(w.t, map[string]int{"dead": 90, "died": 244}, since)
	})
}

// A watch observes the clock itself.
func TestWatchOfASlowHostThatRenews(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, _ *memetcd.Link) {
		list := watch(w.t, w.Admin, admin.Filter{})
		since := map[string]int{}
		renewing(w, func(i int) {
			for _, c := range list.Changes(w.t.Context()) {
				if _, seen := since[c.Name]; !seen && c.State == protocol.Expired {
					since[c.Name] = i + 1
				}
			}
			v := list.View(w.t.Context(), 10)
			for _, k := range v.Locks {
				if k.Name == "slow" && i >= 4 {
					require.InDelta(w.t, slow.Seconds(), k.ClockOffset, 1)
				}
			}
		})
		require.Equal(w.t, map[string]int{"dead": 90, "died": 124}, since)
	})
}

// The waiters are those of list, show and a watch alike; a user who may not read the tickets sees the locks.
func TestWaitersOfLocks(t *testing.T) {
	bubble(t, func(w *world, _ *memetcd.Cluster, link *memetcd.Link) {
		t := w.t
		w.take("a", time.Hour, time.Hour)
		w.take("slots/0", time.Hour, time.Hour)
		w.Put(clientv3.OpPut(tickets+"a//1", `{"uuid": "u", "hostname": "h"}`))
		w.Put(clientv3.OpPut(tickets+"a//2", "{"))
		w.Put(clientv3.OpPut(tickets+"slots//3", `{"uuid": "u", "slots": 2}`))
		list := func() (counts []int, err error) {
			found, err := w.List(t.Context(), admin.Filter{})
			require.NoError(t, err)
			for l := range found.Locks() {
				counts = append(counts, l.Waiters)
			}
			return counts, found.Uncounted
		}
		counts, err := list()
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, counts)
		d, err := w.Show(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, 2, d.Waiters)
		require.Equal(t, "h", d.Queue.Waiters[0].Hostname)
		require.Empty(t, d.Queue.Error)

		watched := watch(t, w.Admin, admin.Filter{})
		etcdtest.Eventually(t, func() bool { return watched.View(t.Context(), 1).Locks[0].Waiters == 2 })
		w.Set("a", "status", "half")
		etcdtest.Eventually(t, func() bool {
			changes := watched.Changes(t.Context())
			return len(changes) > 0 && changes[0].Waiters == 2
		})

		link.Allow("/mutexes/", "/mutexes0")
		counts, err = list()
		require.ErrorContains(t, err, "permission denied")
		require.Equal(t, []int{0, 0}, counts)
		d, err = w.Show(t.Context(), "a")
		require.NoError(t, err)
		require.Contains(t, d.Queue.Error, "permission denied")
	})
}
