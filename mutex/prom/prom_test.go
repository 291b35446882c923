//go:build go1.25

package prom_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest"
	"github.com/etcd-unlocker/unlocker/mutex/prom"
)

func Example() {
	observe, err := prom.Observer(prometheus.DefaultRegisterer)
	if err != nil {
		fmt.Println(err)
		return
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = etcd.Close() }()
	client, err := mutex.New(etcd, mutex.Observe(observe)) // for all locks of this client
	fmt.Println(client != nil, err)
	// Output: true <nil>
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		observe, err := prom.Observer(reg)
		require.NoError(t, err)
		_, err = prom.Observer(reg)
		require.Error(t, err, "registered twice")
		e := mutextest.New(t)
		other, err := e.Client().Lock(t.Context(), "a")
		require.NoError(t, err)
		time.AfterFunc(10*time.Second, func() { _ = other.Unlock(t.Context()) })
		l, err := e.Client(mutex.Observe(observe), mutex.KeepAlive(time.Hour)).Lock(t.Context(), "a")
		require.NoError(t, err)
		<-time.After(100 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP unlocker_mutex_events_total Events of locks, by kind.
# TYPE unlocker_mutex_events_total counter
unlocker_mutex_events_total{event="asked"} 0
unlocker_mutex_events_total{event="late"} 0
unlocker_mutex_events_total{event="lost"} 0
unlocker_mutex_events_total{event="released"} 1
unlocker_mutex_events_total{event="renewed"} 2
unlocker_mutex_events_total{event="taken"} 1
unlocker_mutex_events_total{event="waiting"} 1
`), "unlocker_mutex_events_total"))
		families, err := reg.Gather()
		require.NoError(t, err)
		sums := map[string]float64{}
		for _, f := range families {
			sums[f.GetName()] = f.GetMetric()[0].GetHistogram().GetSampleSum()
		}
		require.InDelta(t, 10, sums["unlocker_mutex_wait_duration_seconds"], 1)
		require.InDelta(t, 100, sums["unlocker_mutex_hold_duration_seconds"], 1)
		require.InDelta(t, 2*2./3, sums["unlocker_mutex_renewal_margin_ratio"], .05)
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}
