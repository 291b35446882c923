package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

const (
	// footprintTime is the duration of a measurement of CPU time.
	footprintTime = 20 * time.Second
	// renewals is the number of renewals per second.
	renewals = 1_000
)

// BenchmarkFootprint measures the CPU time and the memory of the daemon: the binary as users
// build it, in its own process, with the defaults except for the storm delay, which would
// delay the removals at the end. Each lock has seven fields, including a backtrace of
// 1 KiB. A GOMEMLIMIT in the environment applies to the daemon.
//
//	go test -run '^$' -bench Footprint -benchtime 1x -timeout 30m ./bench
func BenchmarkFootprint(b *testing.B) {
	binary := buildDaemon(b)
	for _, locks := range []int{0, 10_000, 200_000} {
		b.Run(fmt.Sprintf("locks-%d", locks), func(b *testing.B) {
			for range b.N {
				footprint(b, binary, locks)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// buildDaemon returns the path of the binary as users build it.
func buildDaemon(b *testing.B) string {
	binary := filepath.Join(b.TempDir(), "unlocker")
	build := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "../cmd/unlocker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(b, err, "%s", out)
	return binary
}

func footprint(b *testing.B, binary string, locks int) {
	e, future := newEtcd(b), time.Now().Add(time.Hour)
	backtrace := strings.Repeat("main.(*Worker).run(0xc000123456)\n\t/src/worker.go:123 +0x1b4\n", 20)[:1<<10]
	putLocks(e, locks, future, future, "owner", "billing", "backtrace", backtrace)
	d, ready := launch(b, binary, e.Endpoints()...)
	b.ReportMetric(ready.Seconds(), "ready-s")
	require.Eventually(b, func() bool {
		return d.metric("unlocker_locks") == float64(locks) && d.metric("unlocker_reaper_hold") == 0
	}, time.Minute, time.Second)
	b.ReportMetric(100*d.cpu(), "idle-cpu%")
	b.ReportMetric(d.metric("process_resident_memory_bytes")/(1<<20), "idle-rss-MiB")
	b.ReportMetric(d.metric("go_memstats_heap_alloc_bytes")/(1<<20), "idle-heap-MiB")
	b.ReportMetric(d.peak(), "listing-peak-MiB")
	if locks == 0 {
		return
	}
	stop := renew(b, e.Client, locks)
	before := d.metric("unlocker_lock_renewals_total")
	b.ReportMetric(100*d.cpu(), "busy-cpu%")
	b.ReportMetric((d.metric("unlocker_lock_renewals_total")-before)/footprintTime.Seconds(), "renewals/s")
	b.ReportMetric(d.metric("process_resident_memory_bytes")/(1<<20), "busy-rss-MiB")
	b.ReportMetric(d.peak(), "busy-peak-MiB")
	stop()
	expire(b, e.Client, locks)
	used := d.metric("process_cpu_seconds_total")
	require.Eventually(b, func() bool { return d.metric("unlocker_locks") == 0 }, 5*time.Minute, time.Second)
	b.ReportMetric(d.metric("process_cpu_seconds_total")-used, "removal-cpu-s")
	b.ReportMetric(d.peak(), "removal-peak-MiB")
}

// expire renews all n locks for the last time, so that all are due at once, soon after it returns. Without the stamp each
// had five minutes of patience.
func expire(b *testing.B, client *clientv3.Client, n int) {
	const perTxn = 50
	deadline := strconv.FormatInt(time.Now().Add(5*time.Second+time.Duration(n)*time.Millisecond/2).Unix(), 10)
	for from := 0; from < n; from += perTxn {
		var ops []clientv3.Op
		alive := strconv.FormatInt(time.Now().Unix(), 10)
		for i := from; i < min(from+perTxn, n); i++ {
			ops = append(ops, clientv3.OpPut(prefix+name(i)+"/alive_at", alive), clientv3.OpPut(prefix+name(i)+"/auto_unlock_at", deadline))
		}
		_, err := client.Txn(b.Context()).Then(ops...).Commit()
		require.NoError(b, err)
	}
}

// renew renews the n locks one after another, renewals times per second, until it is stopped.
func renew(b *testing.B, client *clientv3.Client, n int) (stop func()) {
	const slot = 10 * time.Millisecond
	perSlot := int(renewals * slot / time.Second)
	ctx, cancel := context.WithCancel(b.Context())
	var g errgroup.Group
	g.SetLimit(256)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(slot)
		defer tick.Stop()
		for i := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for range perSlot {
				lock := name(i % n)
				i++
				g.Go(func() error { return renewOne(ctx, client, lock) })
			}
		}
	}()
	return func() {
		cancel()
		<-done
		_ = g.Wait() // those in flight were canceled; other errors show in the rate
	}
}

func renewOne(ctx context.Context, client *clientv3.Client, lock string) error {
	now := time.Now()
	var puts []clientv3.Op
	for _, op := range lockOps(lock, now.Add(time.Hour), now.Add(time.Hour)) {
		if key := string(op.KeyBytes()); strings.HasSuffix(key, "alert_at") || strings.HasSuffix(key, "auto_unlock_at") {
			puts = append(puts, op)
		}
	}
	puts = append(puts, clientv3.OpPut(prefix+lock+"/alive_at", strconv.FormatInt(now.Unix(), 10)))
	_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.Version(prefix+lock+"/uuid"), ">", 0)).Then(puts...).Commit()
	return err
}

// process is the process of the daemon.
type process struct {
	b    *testing.B
	pid  int
	base string // of the ops listener
	web  string
}

// launch starts the daemon, waits until it is ready, and returns how long that took.
func launch(b *testing.B, binary string, endpoints ...string) (*process, time.Duration) {
	return launchWith(b, binary, nil, endpoints...)
}

// launchWith is launch with further flags.
func launchWith(b *testing.B, binary string, flags []string, endpoints ...string) (*process, time.Duration) {
	// The cleanup stops the daemon, and the context of b ends before it runs.
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), binary, append([]string{"serve", "--ops-listen", "127.0.0.1:0",
		"--web-listen", "127.0.0.1:0", "--reaper-storm-min-locks", "0", "--etcd-endpoints", strings.Join(endpoints, ",")}, flags...)...)
	cmd.Dir = b.TempDir()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "UNLOCKER_") })
	stderr, err := cmd.StderrPipe()
	require.NoError(b, err)
	start := time.Now()
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		require.NoError(b, cmd.Process.Signal(os.Interrupt))
		require.NoError(b, cmd.Wait())
	})
	lines := bufio.NewScanner(stderr)
	var line struct{ Msg, Ops, Web string }
	for line.Msg != api.LogStarted {
		require.True(b, lines.Scan(), "the daemon ended")
		require.NoError(b, json.Unmarshal(lines.Bytes(), &line))
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	d := &process{b, cmd.Process.Pid, "http://" + line.Ops, "http://" + line.Web}
	require.Eventually(b, func() bool {
		status, _ := d.get("/readyz")
		return status == http.StatusOK
	}, time.Minute, 5*time.Millisecond)
	return d, time.Since(start)
}

// awaitNoHold waits until the daemon removes locks that are due.
func (d *process) awaitNoHold() {
	require.Eventually(d.b, func() bool { return d.metric("unlocker_reaper_hold") == 0 }, time.Minute, 100*time.Millisecond)
}

func (d *process) get(path string) (int, string) {
	resp, err := http.Get(d.base + path)
	require.NoError(d.b, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(d.b, err)
	require.NoError(d.b, resp.Body.Close())
	return resp.StatusCode, string(body)
}

func (d *process) metric(name string) float64 {
	status, body := d.get("/metrics")
	require.Equal(d.b, http.StatusOK, status)
	return etcdtest.Metric(d.b, body, name)
}

// cpu returns the number of CPUs that the daemon keeps busy.
func (d *process) cpu() float64 {
	used := func() float64 { return d.metric("process_cpu_seconds_total") }
	before, start := used(), time.Now()
	<-time.After(footprintTime)
	return (used() - before) / time.Since(start).Seconds()
}

// peak returns the maximum of the resident memory since the start, in MiB.
func (d *process) peak() float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	require.NoError(d.b, err)
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			require.NoError(d.b, err)
			return float64(kib) / (1 << 10)
		}
	}
	require.FailNow(d.b, "no VmHWM")
	return 0
}
