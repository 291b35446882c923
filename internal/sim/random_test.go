package sim

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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
	began := time.Now()
	sums := make([]sums, workers)
	t.Run("workers", func(t *testing.T) {
		for i := range workers {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(rt *rapid.T) {
					rapid.SliceOfN(rapid.Byte(), i, i).Draw(rt, "of this worker") // or all had the same histories
					h := draw(rt, kinds)
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
	s := fmt.Sprintf("replicas %d, lasts %s, clocks %+v\n", h.Replicas, h.Lasts, h.Clocks)
	for _, o := range h.Holders {
		s += fmt.Sprintf("  holder %+v\n", o)
	}
	for _, f := range h.Faults {
		s += fmt.Sprintf("  fault %+v\n", f)
	}
	return s
}

// seconds draws a time in twentieths of a second.
func seconds(rt *rapid.T, name string, least, most int) time.Duration {
	return time.Duration(rapid.IntRange(20*least, 20*most).Draw(rt, name)) * time.Second / 20
}

func chance(rt *rapid.T, name string, percent int) bool {
	return rapid.IntRange(0, 99).Draw(rt, name) >= 100-percent
}

func oneOf[T any](rt *rapid.T, name string, values ...T) T {
	return rapid.SampledFrom(values).Draw(rt, name)
}

// draw makes a random history: faults in its first minute, and time after them in
// which the dead must go.
func draw(rt *rapid.T, kinds []kind) (h history) {
	h.Replicas = oneOf(rt, "replicas", 1, 1, 1, 2, 2, 3)
	for range h.Replicas {
		h.Clocks = append(h.Clocks, drawClock(rt, 25))
	}
	for range rapid.IntRange(1, 5).Draw(rt, "holders") {
		h.Holders = append(h.Holders, drawHolder(rt))
	}
	last := 40 * time.Second
	for range oneOf(rt, "faults", 0, 1, 1, 2, 3) {
		f := drawFault(rt, h.Replicas, kinds)
		if f.restores() && slices.ContainsFunc(h.Faults, fault.restores) {
			continue // what a daemon saw between two is known to nobody
		}
		h.Faults = append(h.Faults, f)
		last = max(last, f.end())
	}
	h.Lasts = last + seconds(rt, "after", 25, 60)
	return h
}

func drawClock(rt *rapid.T, percent int) (c clock) {
	if !chance(rt, "clock is off", percent) {
		return c
	}
	off := func(name string) time.Duration {
		return oneOf[time.Duration](rt, name, 1, -1) * oneOf(rt, name, time.Second, 1900*time.Millisecond, 5*time.Second, 90*time.Second, 7*time.Minute, 24*time.Hour)
	}
	c.Drift = oneOf(rt, "drift", 0, 0, 100, -100)
	if chance(rt, "offset", 60) {
		c.Offset = off("offset")
	}
	if chance(rt, "steps", 40) {
		c.Steps = append(c.Steps, step{seconds(rt, "step", 5, 70), off("step")})
		if chance(rt, "back", 50) {
			c.Steps = append(c.Steps, step{c.Steps[0].At + seconds(rt, "back", 1, 10), -c.Steps[0].By})
		}
	}
	return c
}

func drawHolder(rt *rapid.T) holder {
	h := holder{
		Name: oneOf(rt, "name", "a", "a/b", "b", "c", "d"), Host: rapid.IntRange(0, 1).Draw(rt, "host"),
		Start: seconds(rt, "start", 0, 40), Interval: seconds(rt, "interval", 2, 10), Retry: oneOf(rt, "retry", 20*time.Second, 5*time.Second, time.Second),
		LockedAt: !chance(rt, "no locked_at", 20), AliveAt: !chance(rt, "no alive_at", 30), Seconds: chance(rt, "whole seconds", 30), Clock: drawClock(rt, 40),
	}
	h.TTL = h.Interval*time.Duration(oneOf(rt, "renewals", 2, 3, 4)) + time.Second
	if chance(rt, "long", 10) {
		h.TTL = seconds(rt, "ttl", 60, 600)
	}
	if chance(rt, "never renews", 15) {
		h.Interval = 0
	}
	switch oneOf(rt, "ends", "dies", "dies", "dies", "lives", "releases", "stalls") {
	case "dies":
		h.Dies = h.Start + seconds(rt, "dies", 1, 40)
	case "releases":
		h.Releases, h.Blind = h.Start+seconds(rt, "releases", 1, 40), chance(rt, "blind", 30)
	case "stalls":
		h.Stall, h.StallsFor = h.Start+seconds(rt, "stall", 1, 30), seconds(rt, "stalls", 1, 40)
	}
	if chance(rt, "notes", 20) {
		h.Note = seconds(rt, "note", 1, 5)
	}
	if chance(rt, "odd deadline", 5) {
		h.Deadline = oneOf(rt, "deadline", "none", "soon", "0", "1700000000000")
	}
	return h
}

// kinds are those of random faults, as often as they are drawn.
func kinds() []kind {
	return []kind{unreachable, unreachable, refused, unanswered, noLeader, slowDisk, lag, latency, noSpace, noSpace, corrupt, broken, tokens, compacted, logFull,
		paused, killed, killed, down, rolledBack, newCluster, bumped}
}

func drawFault(rt *rapid.T, count int, kinds []kind) fault {
	f := fault{
		Kind: oneOf(rt, "fault", kinds...),
		At:   seconds(rt, "at", 1, 50), For: seconds(rt, "for", 1, 5),
	}
	if chance(rt, "long", 50) {
		f.For = seconds(rt, "for", 5, 30)
	}
	f.Who = oneOf(rt, "who", everyone, everyone, replicas, hosts)
	if f.Who == replicas {
		f.N = rapid.IntRange(0, count).Draw(rt, "number")
	}
	switch f.Kind {
	case noSpace, corrupt, slowDisk, paused, down:
		f.Who = everyone
	case killed, logFull:
		f.Who, f.N = replicas, rapid.IntRange(0, count).Draw(rt, "number")
	case lag, latency:
		f.By = oneOf(rt, "by", 50*time.Millisecond, 500*time.Millisecond, 3*time.Second)
	case broken, tokens, compacted:
		f.Who, f.For = everyone, 0
	case rolledBack, newCluster, bumped:
		f.Who, f.For, f.By, f.Writes = everyone, 0, seconds(rt, "age", 0, 30), oneOf(rt, "writes", 0, 100)
	}
	return f
}
