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
	const n = 5
	statuses := make(chan int, n)
	for range n {
		go func() {
			var refused api.Error
			statuses <- d.getAPI("/api/v1/history?name=a", &refused)
		}()
	}
	refused := 0
	for range n {
		if <-statuses == http.StatusServiceUnavailable {
			refused++
		}
	}
	// One reads and, on a busy machine, maybe another one once the first has given up.
	require.GreaterOrEqual(t, refused, n-2)
	require.NoError(t, proxy.Heal())
	var h api.History
	require.Eventually(t, func() bool { return d.getAPI("/api/v1/history?name=a", &h) == http.StatusOK }, time.Minute, 100*time.Millisecond)
	require.Len(t, h.Periods, 1)
}
