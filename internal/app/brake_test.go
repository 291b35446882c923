package app_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// braking is the brake of the jobs; other locks have none. Replicas act at the same time.
func braking(c *config.Config) {
	c.Reaper.StandbyDelay = 0
	c.Policies = []config.Policy{{Match: "job/*", Mode: "enforce", Grace: c.Reaper.Grace, Brake: config.Brake{MaxForced: 2, Window: time.Hour}}}
}

// expire takes a lock of which the holder is dead.
func expire(e *etcdtest.Etcd, name string) {
	e.Put(e.Lock(name, time.Now(), time.Now().Add(-time.Hour))...)
}

// forceUnlocks waits until n locks of a name in a row were removed, and their records are written.
func forceUnlocks(t *testing.T, e *etcdtest.Etcd, name string, n int) {
	t.Helper()
	before := len(auditRecords(t, e))
	for i := range n {
		expire(e, name)
		etcdtest.Eventually(t, func() bool { return len(e.Keys(name)) == 0 && len(auditRecords(t, e)) == before+i+1 })
	}
}

// requireBraked waits until a daemon keeps the only lock that it sees, and requires that it says why.
func (d *daemon) requireBraked(name string) {
	d.t.Helper()
	d.awaitMetric(1, "unlocker_locks_braked")
	require.Zero(d.t, d.metric("unlocker_reaper_backlog"))
	var detail api.LockDetail
	require.Equal(d.t, http.StatusOK, d.getAPI("/api/v1/locks/"+name, &detail))
	require.Equal(d.t, []any{verdict.Leave, verdict.ByBrake, 2, 2},
		[]any{detail.Verdict.Action, detail.Verdict.Reason, detail.Verdict.Forced, detail.Verdict.MaxForced})
	require.Contains(d.t, detail.Explanation, "is kept by the brake until unlocker unlock or unlocker resume --brake: the last 2 locks of this name expired")
}

// Each replica keeps the lock, whichever removed those before it, and so does one that is started later. A user ends that
// for all of them.
func TestS3_BrakeKeepsTheLockInEveryReplicaUntilAUserEndsIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, e *etcdtest.Etcd){
		"resume --brake": func(t *testing.T, e *etcdtest.Etcd) { require.NoError(t, person(t, e).EndBrake(t.Context(), "job/a")) },
		"unlock":         func(t *testing.T, e *etcdtest.Etcd) { unlock(t, e, "job/a", "the job is fixed") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := etcdtest.Start(t, localetcd.Options{})
			replicas := []*daemon{startDaemon(t, e.Endpoints(), braking), startDaemon(t, e.Endpoints(), braking)}
			for _, d := range replicas {
				d.awaitReaping()
			}
			forceUnlocks(t, e, "job/a", 2)
			for _, d := range replicas { // each, before either could remove the next one
				etcdtest.Eventually(t, func() bool { return len(d.forced("job/a")) == 2 })
			}
			expire(e, "job/a")
			for _, d := range replicas {
				d.requireBraked("job/a")
			}
			replicas[0].stop()
			replicas[0] = startDaemon(t, e.Endpoints(), braking)
			replicas[0].requireBraked("job/a")
			forceUnlocks(t, e, "other", 3)

			gone := watchGone(t, e, "job/a")
			end(t, e)
			gone()
			for _, d := range replicas {
				d.awaitMetric(0, "unlocker_locks_braked")
				etcdtest.Eventually(t, func() bool { return len(d.log.Lines(api.LogBrakeEnds)) == 1 })
			}
			later := startDaemon(t, e.Endpoints(), braking)
			later.awaitReaping()
			forceUnlocks(t, e, "job/a", 1)
			require.Zero(t, later.metric("unlocker_locks_braked"))
		})
	}
}

// A release in time ends the count, also for a replica that is started after it.
func TestS3_BrakeEndsWithARelease(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"seen": false, "recorded": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := etcdtest.Start(t, localetcd.Options{})
			d := startDaemon(t, e.Endpoints(), braking)
			d.awaitReaping()
			forceUnlocks(t, e, "job/a", 1)
			later := time.Now().Add(time.Hour)
			e.Put(e.Lock("job/a", later, later)...)
			d.awaitMetric(1, "unlocker_locks", "state", "held")
			e.Put(clientv3.OpDelete(prefix+"job/a/", clientv3.WithPrefix()))
			etcdtest.Eventually(t, func() bool { return len(auditRecords(t, e)) == 2 })
			if restarted {
				d.stop()
				d = startDaemon(t, e.Endpoints(), braking)
				d.awaitReaping()
			}
			forceUnlocks(t, e, "job/a", 2)
			require.Len(t, d.forced("job/a"), 3, "the release is none")
			expire(e, "job/a")
			d.requireBraked("job/a")
		})
	}
}

// Where the records cannot be read, a brake does not know what it has to: nothing is removed.
func TestS3_BrakeWithoutTheRecordsRemovesNothing(t *testing.T) {
	t.Parallel()
	l := lockDown(t, localetcd.Options{})
	l.below(prefix)
	l.below(election)
	l.revoke(auditPrefix)
	d := l.daemon(fast, braking)
	d.awaitReady()
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "disconnected")
	expire(l.Etcd, "job/a")
	gone := watchGone(t, l.Etcd, "job/a")
	var status api.Status
	etcdtest.Eventually(t, func() bool {
		require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
		return len(status.Holds) == 1
	})
	require.Equal(t, "records of removals, which the brake counts, not loaded", status.Holds[0].Reason)
	l.below(auditPrefix)
	gone()
}

// After a restore of etcd to an older revision a user ends what was counted before it.
func TestS3_BrakeEndsAfterARestore(t *testing.T) {
	t.Parallel()
	before, after := etcdtest.Start(t, localetcd.Options{}), etcdtest.Start(t, localetcd.Options{})
	endpoint, restore := switched(t, before.Endpoints()[0], after.Endpoints()[0])
	d := startDaemon(t, []string{endpoint}, braking)
	d.awaitReaping()
	for range 100 {
		before.Put(clientv3.OpPut("/elsewhere", ""))
	}
	forceUnlocks(t, before, "job/a", 2)
	expire(before, "job/a")
	d.requireBraked("job/a")
	restore()
	etcdtest.Eventually(t, func() bool { return d.metric("unlocker_locks_braked") == 0 })
	d.awaitReaping()
	expire(after, "job/a")
	d.requireBraked("job/a")
	gone := watchGone(t, after, "job/a")
	require.NoError(t, person(t, after).EndBrake(t.Context(), "job/a"))
	gone()
}

// switched returns an endpoint that leads to one etcd, and after a call to another.
func switched(t *testing.T, from, to string) (endpoint string, change func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			out, err := net.Dial("tcp", from[strings.LastIndex(from, "/")+1:])
			open = append(open, in)
			mu.Unlock()
			if err != nil {
				_ = in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
		}
	}()
	return "http://" + l.Addr().String(), func() {
		mu.Lock()
		defer mu.Unlock()
		from = to
		for _, c := range open {
			_ = c.Close()
		}
	}
}
