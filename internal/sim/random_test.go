package sim

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/etcd-unlocker/unlocker/internal/config"
)

// TestRandomHistories runs SIM_HISTORIES random histories on the etcd in memory, 100 unless told otherwise.
// -rapid.seed repeats them as far as the daemon's own random pauses allow.
func TestRandomHistories(t *testing.T) { randomHistories(t, "SIM_HISTORIES", "100", run, kinds()) }

// TestRandomHistoriesOnServer runs SIM_SERVER_HISTORIES on a real etcd, with the faults that it can have.
func TestRandomHistoriesOnServer(t *testing.T) {
	randomHistories(t, "SIM_SERVER_HISTORIES", "20", runReal, slices.DeleteFunc(kinds(), func(k kind) bool { return k == noLeader || k == lag }))
}

func randomHistories(t *testing.T, count, few string, run func(*testing.T, history, without) *judge, kinds []kind) {
	total, err := strconv.Atoi(cmp.Or(os.Getenv(count), few))
	require.NoError(t, err)
	workers := runtime.GOMAXPROCS(0)
	require.NoError(t, flag.Set("rapid.checks", strconv.Itoa((total+workers-1)/workers)))
	require.NoError(t, flag.Set("rapid.nofailfile", "true"))
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(4 << 30)) // of what closing leaves, 800 % are too much
	began := time.Now()
	sums := make([]sums, workers)
	t.Run("workers", func(t *testing.T) {
		for i := range workers {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) {
					rapid.SliceOfN(rapid.Byte(), i, i).Draw(rt, "of this worker") // or all had the same histories
					h := draw(rt, kinds)
					if chance(rt, "configured otherwise", 30) {
						h.Config = oneOf(rt, "configuration", slices.Sorted(maps.Keys(configurations()))...)
					}
					j := run(t, h, without{})
					sums[i].add(j)
					for _, v := range j.violations {
						rt.Errorf("%s at %s: %s\n%s", v.promise, v.at, v.text, h)
					}
				})
			})
		}
	})
	var all = sums[0]
	for _, s := range sums[1:] {
		all.histories, all.removals, all.deaths, all.soon = all.histories+s.histories, all.removals+s.removals, all.deaths+s.deaths, all.soon+s.soon
	}
	t.Logf("%d histories, %.0f a second: %d removals, %d locks judged by S6, %d of them with a bound within the history",
		all.histories, float64(all.histories)/time.Since(began).Seconds(), all.removals, all.deaths, all.soon)
}

// configurations are others than the default one, under which the promises hold as well.
func configurations() map[string]func(*config.Config) {
	return map[string]func(*config.Config){
		"long freshness": func(c *config.Config) { c.Reaper.Freshness = 2 * time.Minute },
		"long requests":  func(c *config.Config) { c.Etcd.RequestTimeout = time.Minute },
		"no settle":      func(c *config.Config) { c.Reaper.Settle = 0 },
		"no standby":     func(c *config.Config) { c.Reaper.StandbyDelay = 0 },
		"tight": func(c *config.Config) {
			c.Reaper.Grace, c.Reaper.ClockTolerance, c.Reaper.ProbeInterval, c.Reaper.Freshness = time.Second, time.Second, time.Second/2, 2*time.Second
		},
		"tolerant": func(c *config.Config) { c.Reaper.Grace, c.Reaper.ClockTolerance = 10*time.Second, 10*time.Second },
	}
}

// TestConvictByRandomHistories takes rules out of the daemon that no single request shows: random histories must convict
// it, by what it sends and by what etcd carries out. SIM_CONVICT is how many there are, 400 unless told otherwise.
func TestConvictByRandomHistories(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("SIM_CONVICT"), "400"))
	require.NoError(t, err)
	histories := rapid.Custom(func(rt *rapid.T) history { return draw(rt, kinds()) })
	for _, c := range []struct {
		rule string
		out  without
		// by is the first history that convicts what is sent, carried that of what is carried out; 0 for none.
		sent, carried int
	}{
		{"Confirmed", without{confirmed: true}, 1, 128},
	} {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			sent, carried := 0, 0
			for n := 1; n <= count && (sent == 0 || carried == 0); n++ {
				h := histories.Example(n)
				for _, v := range run(t, h, c.out).violations {
					first := &sent
					if strings.Contains(v.text, carriedOut) {
						first = &carried
					}
					if *first == 0 {
						*first = n
						t.Logf("history %d: %s at %s: %s\n%s", n, v.promise, v.at, v.text, h)
					}
				}
			}
			t.Logf("%s: convicted as sent by history %d, as carried out by %d", c.rule, sent, carried)
			require.True(t, sent > 0 || c.sent == 0 || c.sent > count, "none convicts what is sent")
			require.True(t, carried > 0 || c.carried == 0 || c.carried > count, "none convicts what is carried out")
		})
	}
}

// sums are what the judges had to look at.
type sums struct{ histories, removals, deaths, soon int }

func (s *sums) add(j *judge) {
	s.histories++
	s.removals += j.removals
	s.deaths += j.deaths
	s.soon += j.bounded
}

// String writes a history so that it can be made a directed one.
func (h history) String() string {
	s := fmt.Sprintf("configuration %q, replicas %d, lasts %s, rate %v, resync %s, clocks %+v\n", h.Config, h.Replicas, h.Lasts, h.Rate, h.Resync, h.Clocks)
	for _, o := range h.Holders {
		s += fmt.Sprintf("  holder %+v\n", o)
	}
	for _, f := range h.Faults {
		s += fmt.Sprintf("  fault %+v\n", f)
	}
	return s
}
