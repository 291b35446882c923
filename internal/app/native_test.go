package app_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// The daemon shows the locks of other programs, its own election among them, and touches none.
func TestNativeLocks(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	s, err := concurrency.NewSession(e.Client)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.NoError(t, concurrency.NewMutex(s, "/locks/deploy").Lock(t.Context()))
	began := time.Now()
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) { c.NativePrefixes = []string{"/locks/", "/unlocker/leader/"} })
	d.awaitReaping()
	d.awaitMetric(1, "unlocker_native_locks", "prefix", "/locks/")
	d.awaitMetric(1, "unlocker_native_locks", "prefix", "/unlocker/leader/")
	since := d.metric("unlocker_native_oldest_lock_timestamp_seconds", "prefix", "/locks/")
	require.InDelta(t, float64(began.UnixMilli())/1000, since, 10)

	var list api.NativeList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/native", &list))
	require.Len(t, list.Prefixes, 2)
	h := list.Prefixes[0].Holders[0]
	require.Equal(t, "/locks/deploy", h.Name)
	require.Equal(t, fmt.Sprintf("%x", s.Lease()), h.Lease)
	require.Equal(t, api.LeaseAlive, h.LeaseState)
	require.Equal(t, since, float64(h.Since.UnixNano())/1e9)
	require.Equal(t, "/unlocker/leader/mutexes", list.Prefixes[1].Holders[0].Name)
	require.NotEmpty(t, list.Prefixes[1].Holders[0].Value, "the identity of the leader")

	require.NoError(t, s.Close())
	d.awaitMetric(0, "unlocker_native_locks", "prefix", "/locks/")
	_, body := d.get("/metrics")
	require.NotContains(t, body, `unlocker_native_oldest_lock_timestamp_seconds{prefix="/locks/"}`)
}

// A native prefix that cannot be read takes nothing from the locks: no hold, and locks are removed.
func TestNativePrefixWithoutPermission(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	e.Guard("unlocker", "pw", prefix, "/unlocker/")
	d := startDaemon(t, e.Endpoints(), func(c *config.Config) {
		c.Etcd.Username, c.Etcd.Password = "unlocker", config.NewSecret("pw")
		c.NativePrefixes = []string{"/locks/"}
	})
	d.awaitReaping()
	etcdtest.Eventually(t, func() bool { return len(d.log.Lines(api.LogNativeNotListed)) == 1 })
	const refused = `permission denied: user "unlocker" needs read on [/locks/, /locks0) (prefix /locks/)`
	require.Contains(t, d.log.Lines(api.LogNativeNotListed)[0]["error"], refused)
	var list api.NativeList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/native", &list))
	require.Contains(t, list.Prefixes[0].Error, refused)
	_, body := d.get("/metrics")
	require.NotContains(t, body, "unlocker_native_locks{")
	require.Zero(t, d.metric("unlocker_reaper_hold"))
	e.Put(e.Lock("a", time.Now(), time.Now())...)
	d.awaitMetric(1, "unlocker_forced_unlocks_total")
	require.Zero(t, d.metric("unlocker_reaper_hold"))
	require.Zero(t, d.metric("unlocker_watch_restarts_total"))
}

func TestNoNativePrefixes(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, etcdtest.Start(t, localetcd.Options{}).Endpoints())
	var list api.NativeList
	require.Equal(t, http.StatusOK, d.getAPI("/api/v1/native", &list))
	require.Equal(t, api.NativeList{Prefixes: []api.NativePrefix{}}, list)
}
