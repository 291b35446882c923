//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// One of three members hangs while the other two answer. That costs neither a hold that settles, as one of a
// probe that fails does, nor, with the default durations, more than some seconds, whichever member it is: one
// of them leads, and one has the watch. E2E_HANG is for measurements: each hangs for so long, and nothing is required.
func TestAMemberThatHangsCostsNoHold(t *testing.T) {
	const settle = 15 * time.Second
	hang := 20 * time.Second
	if longer := os.Getenv("E2E_HANG"); longer != "" {
		var err error
		hang, err = time.ParseDuration(longer)
		require.NoError(t, err)
	}
	members := startMembers(t, newest)
	var addrs []string
	for _, m := range members {
		addrs = append(addrs, m.addr)
	}
	d := startDaemon(t, strings.Join(addrs, ","), "--reaper-grace", "2s", "--reaper-clock-tolerance", "2s", "--reaper-probe-interval", "1s",
		"--reaper-freshness", "10s", "--reaper-settle", settle.String())
	for i, m := range members {
		d.awaitMetric(0, "unlocker_reaper_hold")
		role := fmt.Sprintf("member %d, leader %v, with %v watchers", i, m.leads(), m.watchers())
		others := connect(t, append(append([]string{}, addrs[:i]...), addrs[i+1:]...)...)
		begun := len(d.failed())
		dead := &dying{client: others}
		m.suspend()
		longest := dead.measure(t, fmt.Sprintf("hung-%d", i), hang)
		m.resume()
		held := len(d.failed()) - begun
		t.Logf("%s: the longest of %d delays is %s, %d holds", role, dead.count, longest.Round(time.Millisecond), held)
		if os.Getenv("E2E_HANG") == "" {
			require.Zero(t, held, "%v", d.failed()[begun:])
			require.Less(t, longest, settle-5*time.Second)
		}
		m.awaitReady()
	}
}

// failed returns the holds that began, but for those of a probe that was answered late.
func (d *daemon) failed() []map[string]any {
	return slices.DeleteFunc(d.log.Lines(api.LogHoldBegins), func(line map[string]any) bool {
		return strings.HasPrefix(line["reason"].(string), "etcd answered no probe")
	})
}

func connect(t *testing.T, addrs ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) leads() bool {
	s.t.Helper()
	status, err := s.client.Status(s.t.Context(), s.addr)
	require.NoError(s.t, err)
	return status.Leader == status.Header.MemberId
}

func (s *server) watchers() float64 {
	s.t.Helper()
	d := daemon{process: &process{t: s.t}, base: "http://" + s.addr}
	return d.metric("etcd_debugging_mvcc_watcher_total")
}

// dying are holders that die at once.
type dying struct {
	client *clientv3.Client
	count  int
}

const (
	// lifetime is how long the locks of the dying are valid, and dueAfter when they are due.
	lifetime = time.Second
	dueAfter = lifetime + 2*time.Second
)

// measure takes a lock about twice a second, and returns the longest time from due until a lock
// is gone.
func (d *dying) measure(t *testing.T, below string, during time.Duration) (longest time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*soon+during)
	defer cancel()
	gone := d.client.Watch(ctx, prefix+below+"/", clientv3.WithPrefix(), clientv3.WithFilterPut())
	due := map[string]time.Time{}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < during || len(due) > 0; {
		select {
		case <-tick.C:
			if time.Since(begin) < during {
				if name := fmt.Sprintf("%s/%03d", below, d.count); d.take(ctx, name) {
					due[name] = time.Now().Add(dueAfter)
				}
				d.count++
			}
		case r := <-gone:
			require.NoError(t, r.Err())
			for _, ev := range r.Events {
				if name, field, _ := cutLast(string(ev.Kv.Key)[len(prefix):]); field == "uuid" && !due[name].IsZero() {
					longest = max(longest, time.Since(due[name]))
					delete(due, name)
				}
			}
		case <-ctx.Done():
			require.Empty(t, due)
		}
	}
	return longest
}

func cutLast(key string) (name, field string, found bool) {
	i := strings.LastIndexByte(key, '/')
	return key[:max(i, 0)], key[i+1:], i >= 0
}

// take reports whether it took the lock.
func (d *dying) take(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now := time.Now()
	stamp := func(t time.Time) string { return (&worker{}).stamp(t) }
	_, err := d.client.Txn(ctx).Then(clientv3.OpPut(prefix+name+"/uuid", "u"), clientv3.OpPut(prefix+name+"/locked_at", stamp(now)),
		clientv3.OpPut(prefix+name+"/alert_at", stamp(now.Add(lifetime))), clientv3.OpPut(prefix+name+"/auto_unlock_at", stamp(now.Add(lifetime)))).Commit()
	return err == nil
}

// unlocker_etcd_up is 0 soon after etcd died or hangs, and does not come and go meanwhile. It is 1 for
// good soon after etcd answers again.
//
// It runs alone: on a busy machine etcd takes longer to answer than this may.
func TestEtcdUpFollowsSoon(t *testing.T) { //nolint:paralleltest // see above
	etcd := startEtcd(t, newest)
	const interval = 3 * time.Second
	d := startDaemon(t, etcd.addr, "--reaper-grace", (2 * interval).String(), "--reaper-probe-interval", interval.String(), "--reaper-freshness", "10s")
	up := func(want float64, during func()) (took time.Duration) {
		d.awaitMetric(1-want, "unlocker_etcd_up")
		during()
		begin := time.Now()
		d.awaitMetric(want, "unlocker_etcd_up")
		took = time.Since(begin)
		for n := 0; n < 30; n++ {
			if got := d.metric("unlocker_etcd_up"); got != want {
				// After a slow start of etcd, the watch of the time before may be found dead once more.
				require.InDelta(t, 1, want, 0, "it is up, although etcd does not answer")
				require.Less(t, time.Since(begin), soon)
				n = 0
			}
			pause(t, 4*poll)
		}
		return took
	}
	d.awaitMetric(1, "unlocker_etcd_up")
	killed := up(0, etcd.kill)
	up(1, etcd.run)
	stopped := up(0, etcd.suspend)
	up(1, etcd.resume)
	t.Logf("0 after %s where etcd was killed, %s where it hung", killed.Round(time.Millisecond), stopped.Round(time.Millisecond))
	require.Less(t, max(killed, stopped), 3*interval, "two are promised")
}

// pause lets time pass between samples.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
