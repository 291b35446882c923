//go:build hunt

// Package hunt looks for violations of the promises in docs/safety.md on real etcd: three
// members, three daemons and 160 holders, with faults in all of them at the same time. Members
// and daemons are processes, and the hunt sets the daemons' clocks. With an odd seed all of them
// log in, with tokens that expire. The result is checked independently of the daemons, by a
// replay of every revision and by what each holder did by its own clock. The logs of the daemons
// are only compared with it. Restores have a hunt of their own, TestRestores. It runs on Linux
// only.
//
// Guaranteed: a reported violation happened. If a time is known only within bounds, the
// check uses the bound with which there is no violation.
//
// Not guaranteed: that every violation is found, or that a seed repeats a run. The seed
// fixes what is done, but not when a busy machine does it. There is no full disk. A slow disk is
// imitated: the whole member stalls, and not only its fsync.
//
// With HUNT_WITHOUT, one rule is taken out of the daemon (docs/rules.yaml has the names), and
// the hunt must fail.
package hunt

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

func TestMain(m *testing.M) {
	for env, serve := range map[string]func(config string) error{memberEnv: serveMember, waiterEnv: serveWaiter} {
		if config := os.Getenv(env); config != "" {
			if err := serve(config); err != nil {
				panic(err)
			}
			return
		}
	}
	etcdtest.Main(m)
}

// The duration of the long hunt, and how many faults and lifetimes of locks it must have. A
// shorter hunt must have as many in proportion.
const (
	longTime                  = 26 * time.Minute
	longFaults, longLifetimes = 1_000, 100_000
	// Faults are injected for the time burst, and then none for the time quiet, in which
	// late removals are detected.
	burst, quiet = 40 * time.Second, 30 * time.Second
)

func TestHunt(t *testing.T) {
	length := envDuration(t, "HUNT_TIME", longTime)
	seed := envSeed(t)
	t.Logf("HUNT_SEED=%d HUNT_TIME=%s", seed, length)
	share := min(1, length.Seconds()/longTime.Seconds())
	faults, lifetimes := int(share*longFaults), int(share*longLifetimes)

	more := max(length, 10*time.Minute) // a busy machine does less in the same time

	w := newWorld(t, seed)
	start := time.Now()
	w.start()
	for time.Since(start) < length || time.Since(start) < length+more && (w.faults.total() < faults || w.registry.locked() < lifetimes) {
		w.injectFaults(burst)
		w.waitQuietly(quiet)
		t.Logf("%4.0f s: %d faults, %d lifetimes", time.Since(start).Seconds(), w.faults.total(), w.registry.locked())
	}
	w.finish()
	w.report(time.Since(start))
	if w.faults.total() < faults || w.registry.locked() < lifetimes {
		t.Errorf("too few faults or lifetimes: the minimum is %d faults and %d lifetimes", faults, lifetimes)
	}
	promises := map[string]int{}
	for _, v := range w.violations {
		promise, _, _ := strings.Cut(v, ":")
		promises[promise]++
	}
	t.Logf("%d violations: %v", len(w.violations), promises)
	for i, v := range w.violations {
		if i == 50 {
			t.Errorf("and %d more", len(w.violations)-i)
			break
		}
		t.Error(v)
	}
}

func envDuration(t *testing.T, name string, preset time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return preset
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func envSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("HUNT_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return seed
}
