package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const waitersPrefix = "/unlocker/waiters" + prefix

func TestWaitersFromTicketToLock(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReady()
	s := d.follow("", nil)
	later, began := time.Now().Add(time.Hour), time.Now()
	e.Put(e.Lock("a", later, later)...)
	s.awaits(t, "a", "held")
	ticket := protocol.Ticket{UUID: "u-next", Hostname: "worker-7", Owner: "billing", Since: began}
	e.Put(clientv3.OpPut(waitersPrefix+"a//1", ticket.Value()), clientv3.OpPut(waitersPrefix+"a//2", "{"))
	etcdtest.Eventually(t, func() bool { return s.awaits(t, "a", "held").Waiters == 2 }, "the stream")
	require.Equal(t, 2, d.page()["a"].Waiters)
	var one api.LockDetail
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/locks/a", &one))
	require.Equal(t, 2, one.Waiters)
	var list api.WaiterList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/waiters?name=a", &list))
	require.Equal(t, "worker-7", list.Waiters[0].Hostname)
	require.WithinRange(t, list.Waiters[0].Seen, began, time.Now())
	require.True(t, list.Waiters[1].Unreadable)
	require.Contains(t, d.webPage("/locks/a"), "Waiters: 2")
	require.EqualValues(t, 2, d.metric("unlocker_waiters"))
	require.EqualValues(t, 2, d.metric("unlocker_lock_waiters", "lock", "a"))
	require.InDelta(t, float64(list.Waiters[0].Seen.UnixMilli())/1000, d.metric("unlocker_oldest_waiter_timestamp_seconds"), .01)

	e.Put(clientv3.OpDelete(prefix+"a/", clientv3.WithPrefix()))
	e.Put(clientv3.OpDelete(waitersPrefix+"a//1"), clientv3.OpPut(prefix+"a/uuid", "u-next"))
	d.awaitMetric(1, "unlocker_waiters")
	etcdtest.Eventually(t, func() bool { return s.awaits(t, "a", "undated").Waiters == 1 }, "the stream")
	d.awaitMetric(1, "unlocker_lock_wait_duration_seconds")
	e.Put(clientv3.OpDelete(waitersPrefix + "a//2"))
	d.awaitMetric(0, "unlocker_oldest_waiter_timestamp_seconds")
}

// Roles of before do not have the right to the tickets: nobody is known to wait, and all else works.
func TestWaitersWithoutPermission(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Guard("unlocker", "pw", prefix, "/unlocker/leader/", "/unlocker/audit/", "/unlocker/pause/")
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Etcd.Username, c.Etcd.Password = "unlocker", config.NewSecret("pw")
	})
	d.awaitReaping()
	e.Put(e.Lock("a", time.Now(), time.Now())...)
	d.awaitMetric(1, "unlocker_forced_unlocks_total")
	require.Zero(t, d.metric("unlocker_reaper_hold"))
	require.Zero(t, d.metric("unlocker_waiters"))
	const refused = `permission denied: user "unlocker" needs read on [` + waitersPrefix
	var list api.WaiterList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/waiters?name=a", &list))
	require.Contains(t, list.Error, refused)
	require.Len(t, d.log.Lines(api.LogPrefixFailed), 1)
	require.Contains(t, d.webPage("/locks/a"), "Others are not known")
}

// Three holders that wait for each other are shown within seconds, until one of them gives up.
func TestDeadlockOfThree(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	s := d.follow("", nil)
	soon, later := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	locks := []string{"a", "b", "c"}
	for i, lock := range locks {
		e.Put(e.Lock(lock, later, []time.Time{later, soon, later}[i])...)
	}
	for i, lock := range locks {
		ticket := protocol.Ticket{UUID: "u-next", Hostname: "worker-" + lock, Owner: "billing", PID: "7", Holds: []string{"u-" + lock}}
		e.Put(clientv3.OpPut(waitersPrefix+locks[(i+1)%3]+"//"+lock, ticket.Value()))
	}
	d.awaitMetric(1, "unlocker_deadlocks")
	var list api.DeadlockList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/deadlocks", &list))
	require.Equal(t, "billing on worker-a (pid 7) holds a and waits for b; billing on worker-b (pid 7) holds b and waits for c; "+
		"billing on worker-c (pid 7) holds c and waits for a", list.Deadlocks[0].String())
	require.WithinDuration(t, soon, list.Deadlocks[0].Due, 10*time.Second)
	require.Len(t, d.log.Lines(api.LogDeadlock), 1)
	etcdtest.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.status.Deadlocks) == 1
	})
	page := d.webPage("/")
	require.Contains(t, page, "Deadlock:</b> 3 wait for each other")
	require.Contains(t, page, `billing on worker-c (pid 7)</bdi> holds <a href="/locks/c"><bdi>c</bdi></a> and waits for <a href="/locks/a">`)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"), "it breaks none")
	e.Put(clientv3.OpDelete(waitersPrefix + "c//b"))
	d.awaitMetric(0, "unlocker_deadlocks")
}
