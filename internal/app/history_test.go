package app_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

// However many people ask for histories, etcd is read for one at a time, and none waits for long.
func TestHistoriesAreReadOneAtATime(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	proxy := e.Proxy(0)
	d := startDaemon(t, []string{proxy.Addr()})
	d.awaitReady()
	e.Put(e.Lock("a", time.Now().Add(time.Hour), time.Now().Add(time.Hour))...)
	proxy.HoldReplies()
	statuses := make(chan int, 3)
	for range cap(statuses) {
		go func() {
			var refused api.Error
			statuses <- d.getAPI("/api/v1/history?name=a", &refused)
		}()
	}
	require.Equal(t, http.StatusServiceUnavailable, <-statuses)
	require.Equal(t, http.StatusServiceUnavailable, <-statuses)
	require.NoError(t, proxy.Heal())
	<-statuses
	var h api.History
	require.Eventually(t, func() bool { return d.getAPI("/api/v1/history?name=a", &h) == http.StatusOK }, time.Minute, 100*time.Millisecond)
	require.Len(t, h.Periods, 1)
}
