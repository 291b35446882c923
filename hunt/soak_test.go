//go:build hunt && nightly

package hunt

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// soaked is the process of a daemon as users build it, with the defaults but for its addresses.
type soaked struct {
	cmd      *exec.Cmd
	ops, web string
}

func startSoaked(t *testing.T, binary string, endpoints []string) *soaked {
	t.Helper()
	d := &soaked{cmd: exec.Command(binary, "serve", "--etcd-endpoints", strings.Join(endpoints, ","), "--ops-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0")}
	d.cmd.Dir = t.TempDir()
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := d.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	lines := bufio.NewScanner(stderr)
	var line struct{ Msg, Ops, Web string }
	for line.Msg != api.LogStarted {
		require.True(t, lines.Scan(), "a daemon ended at its start")
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	d.ops, d.web = "http://"+line.Ops, "http://"+line.Web
	return d
}

func (d *soaked) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // says that it was killed
}

// sample is what a daemon uses and counts.
type sample map[string]float64

func (d *soaked) sample(t *testing.T) sample {
	resp, err := http.Get(d.ops + "/metrics")
	require.NoError(t, err, "the daemon has ended")
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	s := sample{}
	for _, name := range []string{
		"process_resident_memory_bytes", "go_memstats_heap_alloc_bytes", "go_goroutines", "process_open_fds", "process_cpu_seconds_total",
		"unlocker_locks", "unlocker_waiters", "unlocker_lock_acquisitions_total", "unlocker_lock_releases_total", "unlocker_lock_renewals_total",
		"unlocker_forced_unlocks_total", "unlocker_forced_unlock_conflicts_total", "unlocker_watch_restarts_total", "unlocker_resync_drift_total",
		"unlocker_records_dropped_total", "unlocker_reaper_backlog",
	} {
		s[name] = etcdtest.Metric(t, string(body), name)
	}
	connections, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	require.NoError(t, err)
	for _, fd := range connections {
		if target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", d.cmd.Process.Pid, fd.Name())); strings.HasPrefix(target, "socket:") {
			s["sockets"]++
		}
	}
	return s
}

// TestSoak runs a daemon for SOAK_TIME (6h) beside another replica, which is killed now and then, on three members that
// are, too, with compactions, 2,000 locks that are renewed, one each second that nobody renews, waiters, and readers of
// pages and streams. What the daemon uses must not grow, and what it counts must agree with etcd at the end.
func TestSoak(t *testing.T) {
	length, seed := envDuration(t, "SOAK_TIME", 6*time.Hour), envSeed(t)
	t.Logf("HUNT_SEED=%d SOAK_TIME=%s", seed, length)
	r := rand.New(rand.NewPCG(seed, 4))
	binary := filepath.Join(t.TempDir(), "unlocker")
	out, err := exec.Command("go", "build", "-o", binary, "../cmd/unlocker").CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := newCluster(t, t.Errorf)
	client := c.connect(c.endpoints())
	d, other := startSoaked(t, binary, c.endpoints()), startSoaked(t, binary, c.endpoints())
	t.Cleanup(func() { d.kill(); other.kill() })

	ctx, cancel := context.WithCancel(t.Context())
	var using sync.WaitGroup
	defer using.Wait()
	defer cancel()
	using.Go(func() { keepMany(ctx, t, client) })
	using.Go(func() { leaveLocks(ctx, client) })
	for i := range 10 {
		using.Go(func() { readStreams(ctx, d.web, i) })
	}
	running := make([]*contender, 6)
	for i := range running {
		running[i] = startContender(t, waiterConfig{c.endpoints(), r.Uint64()})
	}
	t.Cleanup(func() {
		for _, p := range running {
			p.kill()
		}
	})
	fault := func() string {
		switch n := r.IntN(10); {
		case n < 3:
			down := []int{r.IntN(members)}
			if n == 0 {
				down = append(down, (down[0]+1)%members)
			}
			for _, i := range down {
				c.members[i].kill()
			}
			pause(ctx, between(r, time.Second, 8*time.Second))
			require.NoError(t, c.restart(ctx, down...))
			return fmt.Sprint(len(down), " members killed")
		case n < 5:
			p := r.IntN(len(running))
			running[p].kill()
			running[p] = startContender(t, waiterConfig{c.endpoints(), r.Uint64()})
			return "waiter killed"
		case n < 7:
			other.kill()
			other = startSoaked(t, binary, c.endpoints())
			return "other replica killed"
		default:
			if now, err := client.Get(ctx, "now"); err == nil {
				_, _ = client.Compact(ctx, now.Header.Revision) // another may have compacted
			}
			return "compacted"
		}
	}
	faults := map[string]int{}
	var samples []sample
	for began, minute := time.Now(), 0; time.Since(began) < length; {
		pause(ctx, between(r, 5*time.Second, 25*time.Second))
		faults[fault()]++
		if m := int(time.Since(began).Minutes()); m > minute || len(samples) == 0 {
			minute = m
			samples = append(samples, d.sample(t))
			t.Logf("%3d min: %v", minute, samples[len(samples)-1])
		}
	}
	t.Logf("%v", faults)
	judgeGrowth(t, samples)

	// In peace, what the daemon shows is what etcd has.
	cancel()
	using.Wait()
	for _, p := range running {
		p.kill()
	}
	uuids := func() (n float64) {
		resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		require.NoError(t, err)
		for _, kv := range resp.Kvs {
			if strings.HasSuffix(string(kv.Key), "/uuid") {
				n++
			}
		}
		return n
	}
	last := sample{}
	require.Eventually(t, func() bool {
		last = d.sample(t)
		return last["unlocker_locks"] == uuids() && last["unlocker_waiters"] == 0 && last["unlocker_reaper_backlog"] == 0
	}, 3*time.Minute, time.Second, "%v", last)
	drift := last["unlocker_lock_acquisitions_total"] - last["unlocker_lock_releases_total"] - last["unlocker_locks"]
	t.Logf("at the end: %v; acquisitions less releases less locks: %g", last, drift)
}

// ledger is what the removals of a day use, up to their limit: some 4 KiB each with a backtrace, and as much garbage.
func (s sample) ledger() float64 { return 2 * min(s["unlocker_forced_unlocks_total"]*(4<<10), 52<<20) }

// judgeGrowth compares the last quarter of the samples with the second. The ledger may grow for a day.
func judgeGrowth(t *testing.T, samples []sample) {
	n := len(samples)
	if n < 8 {
		t.Logf("%d samples are too few to judge growth", n)
		return
	}
	for name, limit := range map[string]float64{
		"process_resident_memory_bytes": 1.25, "go_goroutines": 1.1, "process_open_fds": 1.1, "sockets": 1.1,
	} {
		median := func(part []sample) float64 {
			var all []float64
			for _, s := range part {
				value := s[name]
				if name == "process_resident_memory_bytes" {
					value -= s.ledger()
				}
				all = append(all, value)
			}
			slices.Sort(all)
			return all[len(all)/2]
		}
		before, after := median(samples[n/4:n/2]), median(samples[n*3/4:])
		t.Logf("%s: median of the second quarter %g, of the last %g", name, before, after)
		if after > limit*before+5 {
			t.Errorf("%s has grown", name)
		}
	}
}

// keepMany keeps 2,000 locks alive.
func keepMany(ctx context.Context, t *testing.T, client *clientv3.Client) {
	locks, err := mutex.New(client, mutex.KeepAlive(mutex.Forever), mutex.Patience(time.Minute))
	require.NoError(t, err)
	var names []string
	for i := range 2_000 {
		names = append(names, fmt.Sprintf("kept/%04d", i))
	}
	for ctx.Err() == nil { // what was lost in an outage is taken again
		taken, _, _ := locks.TryLockAll(ctx, names)
		pause(ctx, 30*time.Second)
		if ctx.Err() != nil {
			_ = locks.UnlockAll(context.WithoutCancel(ctx), taken...)
		}
	}
}

// leaveLocks takes a lock each second that nobody renews, and whose deadline is near.
func leaveLocks(ctx context.Context, client *clientv3.Client) {
	locks, err := mutex.New(client, mutex.Expect(2*time.Second), mutex.Patience(3*time.Second))
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		_, _ = locks.TryLock(ctx, fmt.Sprintf("left/%d", i))
		pause(ctx, time.Second)
	}
}

// readStreams reads events for a minute at a time, and a page in between.
func readStreams(ctx context.Context, web string, i int) {
	read := func(path string, d time.Duration) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, web+path, nil)
		if err != nil {
			return
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	for ctx.Err() == nil {
		read(fmt.Sprintf("/api/v1/events?limit=%d", 50+i), time.Minute)
		read("/", 10*time.Second)
	}
}
