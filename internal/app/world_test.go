package app_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	prefix = "/mutexes/"
	// promised is the maximum duration of Stop.
	promised = 5 * time.Second
	// standbyDelay is how much later than the leader a standby acts.
	standbyDelay = 15 * time.Second
)

// daemon is an App under test, with its log and its metrics.
type daemon struct {
	*app.App
	t    *testing.T
	log  *etcdtest.Log
	http *http.Client
	base string
}

// newConfig has shorter durations than the defaults, and no storm delay. A stall of etcd, or of the
// daemon, for several seconds fails no request and ends no watch: on a busy machine there may be one.
func newConfig(endpoints []string) config.Config {
	c := config.Default()
	c.Etcd.Endpoints, c.Etcd.RequestTimeout = endpoints, 8*time.Second
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Reaper.Grace, c.Reaper.ClockTolerance = 2*time.Second, time.Second
	c.Reaper.Settle = 500 * time.Millisecond
	c.Reaper.ProbeInterval = time.Second // a stall of the machine for less than 1.5 s is no outage
	c.Reaper.StandbyDelay = standbyDelay
	c.Reaper.Freshness = 10 * time.Second
	c.Reaper.Storm.MinLocks = 0
	return c
}

func startDaemon(t *testing.T, endpoints []string, edits ...func(*config.Config)) *daemon {
	t.Helper()
	d := newDaemon(t, endpoints, edits...)
	d.Start()
	t.Cleanup(func() { d.stop() })
	return d
}

// newDaemon returns a daemon that is not started.
func newDaemon(t *testing.T, endpoints []string, edits ...func(*config.Config)) *daemon {
	t.Helper()
	return newDaemonThat(t, endpoints, func(string) {}, edits...)
}

// newDaemonThat returns a daemon that calls a function with each message that it logs.
func newDaemonThat(t *testing.T, endpoints []string, logged func(message string), edits ...func(*config.Config)) *daemon {
	t.Helper()
	c := newConfig(endpoints)
	for _, edit := range edits {
		edit(&c)
	}
	log := &etcdtest.Log{}
	a, err := app.New(c, slog.New(hooked{log.Logger().Handler(), logged}))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last of the log:\n%s", log.Tail(20))
		}
	})
	return &daemon{App: a, t: t, log: log, http: newHTTP(), base: "http://" + a.OpsAddr()}
}

// stop may be called more than once. It returns how long it took.
func (d *daemon) stop() time.Duration {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), etcdtest.Soon)
	defer cancel()
	start := time.Now()
	require.NoError(d.t, d.Stop(ctx))
	took := time.Since(start)
	d.t.Logf("stopped in %s", took.Round(time.Millisecond))
	return took
}

func newHTTP() *http.Client {
	return &http.Client{Timeout: etcdtest.Soon, Transport: &http.Transport{DisableKeepAlives: true}}
}

func (d *daemon) get(path string) (status int, body string) {
	d.t.Helper()
	resp, err := d.http.Get(d.base + path)
	require.NoError(d.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return resp.StatusCode, string(text)
}

func (d *daemon) awaitReady() {
	d.t.Helper()
	etcdtest.Eventually(d.t, func() bool {
		status, _ := d.get("/readyz")
		return status == http.StatusOK && d.metric("unlocker_etcd_up") == 1
	})
}

// awaitReaping waits until no hold is in force.
func (d *daemon) awaitReaping() {
	d.t.Helper()
	d.awaitReady()
	d.awaitMetric(0, "unlocker_reaper_hold")
}

// awaitLeading waits until the daemon also acts without the delay of a standby.
func (d *daemon) awaitLeading() {
	d.t.Helper()
	d.awaitReaping()
	d.awaitMetric(1, "unlocker_leader")
}

// requireNoFailures names the reason of a removal that failed.
func (d *daemon) requireNoFailures() {
	d.t.Helper()
	for _, reason := range lockstore.Reasons() {
		require.Zero(d.t, d.metric("unlocker_forced_unlock_failures_total", "reason", string(reason)), reason)
	}
}

// metric scrapes, and returns what etcdtest.Metric does.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	status, body := d.get("/metrics")
	require.Equal(d.t, http.StatusOK, status, body)
	return etcdtest.Metric(d.t, body, name, labels...)
}

func (d *daemon) awaitMetric(value float64, name string, labels ...string) {
	d.t.Helper()
	etcdtest.Eventually(d.t, func() bool { return d.metric(name, labels...) == value },
		"%s%q did not become %v", name, labels, value)
}

// about returns the log lines about a lock, or about all locks if name is "", in their order.
func (d *daemon) about(name string) (lines []map[string]any) {
	for _, line := range d.log.Lines("") {
		if got, ok := line["lock"]; ok && (name == "" || got == name) {
			lines = append(lines, line)
		}
	}
	return lines
}

// names counts the locks about which a message was logged.
func (d *daemon) names(msg string) map[string]int {
	count := map[string]int{}
	for _, line := range d.log.Lines(msg) {
		count[line["lock"].(string)]++
	}
	return count
}

// fieldsOfALock is the number of fields of a lock of etcdtest.
const fieldsOfALock = 6

// putLocks acquires n locks that are due at the same time.
func putLocks(e *etcdtest.Etcd, n int, due time.Time) {
	var ops []clientv3.Op
	for i := range n {
		ops = append(ops, e.Lock(fmt.Sprintf("many/%05d", i), due, due)...)
	}
	e.Put(ops...)
}

// awaitKeys waits until there are n keys of locks that begin with start.
func awaitKeys(t *testing.T, e *etcdtest.Etcd, n int, start string) {
	t.Helper()
	etcdtest.Eventually(t, func() bool { return len(e.Keys(start)) == n })
}

// watchGone watches a lock from now on. The function that it returns waits for the first
// deletion of the uuid, and returns its time.
func watchGone(t *testing.T, e *etcdtest.Etcd, name string) (gone func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*etcdtest.Soon)
	events := e.Client.Watch(ctx, prefix+name+"/uuid", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-events
	at := make(chan time.Time, 1)
	go func() {
		defer close(at)
		for r := range events {
			if len(r.Events) > 0 {
				at <- time.Now()
				return
			}
		}
	}()
	t.Cleanup(cancel)
	return func() time.Time {
		t.Helper()
		moment, ok := <-at
		require.True(t, ok, "%s was not removed, or the function was called twice", name)
		return moment
	}
}

// awaitTime waits until a moment has passed.
func awaitTime(t *testing.T, moment time.Time) {
	t.Helper()
	etcdtest.Eventually(t, func() bool { return time.Now().After(moment) })
}
