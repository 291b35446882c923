package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// obeyed is how soon a pause, or its end, is obeyed.
const obeyed = time.Second

// person runs unlocker pause and resume.
func person(t *testing.T, e *etcdtest.Etcd) *admin.Admin {
	t.Helper()
	a, err := admin.Open(newConfig(e.Endpoints()), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// removals are the revisions at which locks were removed, in order.
func removals(t *testing.T, e *etcdtest.Etcd) <-chan int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	events := e.Client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-events
	at := make(chan int64, 1<<16)
	go func() {
		for r := range events {
			for _, ev := range r.Events {
				at <- ev.Kv.ModRevision
			}
		}
	}()
	return at
}

// clockOf writes to etcd all the time until the test ends. The function that it returns says when, at
// the earliest, a later revision was written, which no delay on the way from etcd changes.
func clockOf(t *testing.T, e *etcdtest.Etcd) (earliest func(revision int64) time.Time) {
	t.Helper()
	var mu sync.Mutex
	var revisions []int64
	var began []time.Time
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			start := time.Now()
			resp, err := e.Client.Put(ctx, "/clock", "")
			if err != nil {
				continue
			}
			mu.Lock()
			revisions, began = append(revisions, resp.Header.Revision), append(began, start)
			mu.Unlock()
			<-time.After(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(revision int64) (at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		if before, _ := slices.BinarySearch(revisions, revision); before > 0 {
			at = began[before-1]
		}
		return at
	}
}

// Three replicas, all of which act at due, while a lock comes due every few milliseconds.
func TestS3_APauseIsObeyedWithinASecond(t *testing.T) {
	t.Parallel()
	const n, every = 3000, 4 * time.Millisecond
	e := etcdtest.Start(t, localetcd.Options{Members: 3})
	var replicas []*daemon
	for i := range 3 {
		replicas = append(replicas, startDaemon(t, []string{e.Addr(i)}, func(c *config.Config) { c.Election.Enabled = false }))
	}
	for _, d := range replicas {
		d.awaitReaping()
	}
	removed, earliest := removals(t, e), clockOf(t, e)
	var ops []clientv3.Op
	first := time.Now().Add(3 * time.Second)
	for i := range n {
		due := first.Add(time.Duration(i) * every)
		ops = append(ops, e.Lock(fmt.Sprintf("many/%04d", i), due, due)...)
	}
	e.Put(ops...)
	ada := person(t, e)
	<-removed

	_, err := ada.Pause(t.Context(), admin.Who(), "", time.Minute, "maintenance")
	require.NoError(t, err)
	paused := time.Now()
	for _, d := range replicas {
		d.awaitMetric(1, "unlocker_reaper_hold", "reason", "paused")
	}
	held := time.Since(paused)
	awaitTime(t, paused.Add(3*obeyed))
	var newest int64
	for len(removed) > 0 {
		newest = <-removed
	}
	last := earliest(newest).Sub(paused)
	t.Logf("the hold of all was seen %s after the pause, and the last removal was %s", held, last)
	require.Less(t, last, obeyed)
	left := len(e.Keys("")) / fieldsOfALock
	require.Positive(t, left)
	require.Less(t, left, n)
	for _, d := range replicas {
		// On a busy machine its watch may have been replaced, which is patience and a hold.
		etcdtest.Eventually(t, func() bool { return d.metric("unlocker_reaper_backlog") > 0 })
		d.awaitMetric(1, "unlocker_reaper_hold")
		require.EqualValues(t, 1, d.metric("unlocker_pauses"))
	}

	_, _, err = ada.Resume(t.Context(), "", true)
	require.NoError(t, err)
	resumed := time.Now()
	again := earliest(<-removed).Sub(resumed)
	t.Logf("%d locks were left, and removed from %s after the end of the pause", left, again)
	require.Less(t, again, obeyed, "no time to settle")
	for _, d := range replicas {
		d.awaitMetric(0, "unlocker_reaper_hold", "reason", "paused")
		began, ended := d.holds("paused")
		require.Equal(t, 1, began)
		require.Equal(t, 1, ended)
		require.Len(t, d.log.Lines(api.LogPauseBegins), 1)
		require.Len(t, d.log.Lines(api.LogPauseEnds), 1)
		require.Zero(t, d.metric("unlocker_pauses"))
	}
}

// A pause of a pattern keeps what matches, says so, and nothing else.
func TestS3_APauseOfAPattern(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	d := startDaemon(t, e.Endpoints())
	d.awaitReaping()
	ada := person(t, e)
	r, err := ada.Pause(t.Context(), admin.Who(), "deploy/**", time.Hour, "debugging\u202e deploy/web")
	require.NoError(t, err)
	d.awaitMetric(1, "unlocker_pauses")
	due := time.Now().Add(time.Second)
	e.Put(e.Lock("deploy/web", due, due)...)
	e.Put(e.Lock("other", due, due)...)
	d.awaitMetric(1, "unlocker_forced_unlocks_total")
	require.Len(t, e.Keys("deploy/"), fieldsOfALock)
	require.Zero(t, d.metric("unlocker_reaper_hold", "reason", "paused"))

	explained := `^is due, but paused until ` + clock + ` by .+@.+ for "deploy/\*\*": debugging\x{202e} deploy/web$`
	etcdtest.Eventually(t, func() bool { return matches(explained, d.page()["deploy/web"].Explanation) })
	var detail api.LockDetail
	etcdtest.Eventually(t, func() bool {
		return d.getAPI("/api/v1/locks/deploy/web", &detail) == http.StatusOK && matches(explained, detail.Explanation)
	})
	require.EqualValues(t, "pause", detail.Verdict.Reason)
	var status api.Status
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
	require.Equal(t, []api.Pause{{Match: "deploy/**", By: r.By, Reason: r.Reason, Since: r.Since, Until: r.Until}}, status.Pauses)
	d.awaitMetric(0, "unlocker_reaper_backlog")

	_, _, err = ada.Resume(t.Context(), "deploy/**", false)
	require.NoError(t, err)
	resumed := time.Now()
	awaitKeys(t, e, 0, "")
	t.Logf("removed %s after the end of the pause", time.Since(resumed))
	require.Less(t, time.Since(resumed), late)
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/status", &status))
	require.Empty(t, status.Pauses)
}

// A pause that lasts when a daemon starts is in force before the first removal.
func TestS3_AStartObeysThePauses(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Put(clientv3.OpPut(pauses+"all", "by mistake"))
	d := startDaemon(t, e.Endpoints())
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "paused")
	d.awaitMetric(1, "unlocker_reaper_hold") // the others end
	due := time.Now().Add(time.Second)
	e.Put(e.Lock("a", due, due)...)
	d.awaitMetric(1, "unlocker_reaper_backlog")
	require.Regexp(t, `; removals on hold since `+clock+`: the record /unlocker/pause/mutexes/all is not a pause that can be read \(invalid character 'b' .*\), `+
		`so all locks are kept until it is deleted$`, d.page()["a"].Explanation)
	require.Zero(t, d.metric("unlocker_forced_unlocks_total"))
	_, err := e.Client.Delete(t.Context(), pauses+"all")
	require.NoError(t, err)
	awaitKeys(t, e, 0, "")
}
