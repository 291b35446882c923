package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	prefix = "/mutexes/"
	// soon is for what needs no more than etcd and us, on a machine that is
	// busy with other things.
	soon = 30 * time.Second
	poll = 20 * time.Millisecond
	// promised is how long Stop may take.
	promised = 5 * time.Second
)

func newEtcd(t *testing.T, o localetcd.Options) (*localetcd.Cluster, *clientv3.Client) {
	t.Helper()
	cluster := localetcd.ForTest(t, o)
	client, err := cluster.Client()
	require.NoError(t, err)
	return cluster, client
}

// daemon is an App under test, with its log and its metrics.
type daemon struct {
	*app.App
	t    *testing.T
	log  *logBuffer
	http *http.Client
	base string
}

// standbyDelay is how much later than the leader the others act.
const standbyDelay = 2 * time.Second

// newConfig is fast where the defaults are patient. Many locks that fall due at
// once are no storm in it.
func newConfig(endpoints []string) config.Config {
	c := config.Default()
	c.Etcd.Endpoints = endpoints
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Reaper.Grace, c.Reaper.ClockTolerance = time.Second, time.Second
	c.Reaper.Settle = 500 * time.Millisecond
	c.Reaper.ProbeInterval = 200 * time.Millisecond
	c.Reaper.StandbyDelay = standbyDelay
	c.Reaper.Freshness = 2 * time.Second
	c.Reaper.Storm.MinLocks = 0
	return c
}

func startDaemon(t *testing.T, endpoints []string, edits ...func(*config.Config)) *daemon {
	t.Helper()
	d := newDaemon(t, endpoints, edits...)
	d.Start()
	t.Cleanup(d.stop)
	return d
}

// newDaemon does not start it.
func newDaemon(t *testing.T, endpoints []string, edits ...func(*config.Config)) *daemon {
	t.Helper()
	c := newConfig(endpoints)
	for _, edit := range edits {
		edit(&c)
	}
	log := &logBuffer{}
	a, err := app.New(c, slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	require.NoError(t, err)
	return &daemon{App: a, t: t, log: log, http: newHTTP(), base: "http://" + a.OpsAddr().String()}
}

// stop may be called more than once.
func (d *daemon) stop() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), promised)
	defer cancel()
	start := time.Now()
	require.NoError(d.t, d.Stop(ctx))
	require.Less(d.t, time.Since(start), promised)
	d.t.Logf("stopped in %s", time.Since(start).Round(time.Millisecond))
}

func newHTTP() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
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
	require.Eventually(d.t, func() bool {
		status, _ := d.get("/readyz")
		return status == http.StatusOK && d.metric("unlocker_etcd_up") == 1
	}, soon, poll)
}

// awaitReaping waits until no hold is in force.
func (d *daemon) awaitReaping() {
	d.t.Helper()
	d.awaitReady()
	d.awaitMetric(0, "unlocker_reaper_hold")
}

// metric scrapes and returns the sum of the series that have all labels, given
// as name, value, name, value; count and sum of a histogram have names of their
// own.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	status, body := d.get("/metrics")
	require.Equal(d.t, http.StatusOK, status, body)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewBufferString(body))
	require.NoError(d.t, err)
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		if hasLabels(m, labels) {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == pair[0] && l.GetValue() == pair[1]
		}) {
			return false
		}
	}
	return true
}

func (d *daemon) awaitMetric(value float64, name string, labels ...string) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.metric(name, labels...) == value }, soon, poll,
		"%s%q is to be %v", name, labels, value)
}

// logBuffer keeps log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (l *logBuffer) Write(p []byte) (int, error) {
	var line map[string]any
	if err := json.Unmarshal(p, &line); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return len(p), nil
}

// about returns the lines about a lock, in their order, "" for all locks.
func (l *logBuffer) about(name string) (lines []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if got, ok := line["lock"]; ok && (name == "" || got == name) {
			lines = append(lines, line)
		}
	}
	return lines
}

// names counts the locks about which a message was logged.
func (l *logBuffer) names(msg string) map[string]int {
	count := map[string]int{}
	for _, line := range l.about("") {
		if line["msg"] == msg {
			count[line["lock"].(string)]++
		}
	}
	return count
}

// stamp writes a time as the protocol does, with a fraction.
func stamp(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

// fields are the keys of a lock.
func fields(name string, alert, unlock time.Time) []clientv3.Op {
	var ops []clientv3.Op
	for _, kv := range [][2]string{
		{"uuid", fmt.Sprintf("%x", name)},
		{"hostname", "worker-1.example.org"},
		{"owner", "billing"},
		{"backtrace", "main.go:1"},
		{"locked_at", stamp(time.Now())},
		{"alert_at", stamp(alert)},
		{"auto_unlock_at", stamp(unlock)},
	} {
		ops = append(ops, clientv3.OpPut(prefix+name+"/"+kv[0], kv[1]))
	}
	return ops
}

func put(t *testing.T, client *clientv3.Client, ops ...clientv3.Op) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for chunk := range slices.Chunk(ops, 112) {
		_, err := client.Txn(ctx).Then(chunk...).Commit()
		require.NoError(t, err)
	}
}

// putLocks takes n locks that fall due together.
func putLocks(t *testing.T, client *clientv3.Client, n int, due time.Time) {
	t.Helper()
	var ops []clientv3.Op
	for i := range n {
		ops = append(ops, fields(fmt.Sprintf("many/%05d", i), due, due)...)
	}
	put(t, client, ops...)
}

// keys counts the keys below a prefix.
func keys(t *testing.T, client *clientv3.Client, below string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	resp, err := client.Get(ctx, below, clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	return resp.Count
}

func awaitKeys(t *testing.T, client *clientv3.Client, n int64, below string) {
	t.Helper()
	require.Eventually(t, func() bool { return keys(t, client, below) == n }, 2*soon, poll)
}

// watchGone watches from now on and gives the time at which a lock's uuid is seen
// deleted for the first time.
func watchGone(t *testing.T, client *clientv3.Client, name string) (gone func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	events := client.Watch(ctx, prefix+name+"/uuid", clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	<-events
	at := make(chan time.Time, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := range events {
			if len(r.Events) > 0 {
				at <- time.Now()
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() time.Time {
		t.Helper()
		select {
		case moment := <-at:
			return moment
		case <-done:
			select {
			case moment := <-at:
				return moment
			default:
				require.FailNow(t, "still there", name)
			}
		}
		return time.Time{}
	}
}

// awaitTime waits until a moment has passed.
func awaitTime(t *testing.T, moment time.Time) {
	t.Helper()
	require.Eventually(t, func() bool { return time.Now().After(moment) }, soon, poll)
}
