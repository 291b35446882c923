package sim

import (
	"cmp"
	"flag"
	"fmt"
	"hash/fnv"
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
		{"Confirmed", without{confirmed: true}, 1, 80},
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
	s := fmt.Sprintf("replicas %d, lasts %s, rate %v, clocks %+v\n", h.Replicas, h.Lasts, h.Rate, h.Clocks)
	for _, o := range h.Holders {
		s += fmt.Sprintf("  holder %+v\n", o)
	}
	for _, f := range h.Faults {
		s += fmt.Sprintf("  fault %+v\n", f)
	}
	return s
}

// even draws a number below n, each as often: rapid itself draws small ones far more often, and with them all that
// happens happens in the first seconds. What is counted is drawn by rapid, so that it removes what is not needed.
func even(rt *rapid.T, name string, n int) int {
	sum := fnv.New64a()
	_, _ = sum.Write(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(rt, name))
	return int(sum.Sum64() % uint64(n))
}

// seconds draws a time in twentieths of a second.
func seconds(rt *rapid.T, name string, least, most int) time.Duration {
	return time.Duration(20*least+even(rt, name, 20*(most-least)+1)) * time.Second / 20
}

func chance(rt *rapid.T, name string, percent int) bool { return even(rt, name, 100) < percent }

func oneOf[T any](rt *rapid.T, name string, values ...T) T {
	return values[even(rt, name, len(values))]
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
	for range rapid.IntRange(0, 3).Draw(rt, "faults") {
		f := drawFault(rt, h.Replicas, kinds)
		if slices.ContainsFunc(h.Faults, f.excludes) {
			continue
		}
		h.Faults = append(h.Faults, f)
		last = max(last, f.end())
	}
	if chance(rt, "near", 40) {
		near := drawNear(rt, h, kinds)
		h.Faults = append(h.Faults, near...)
		for _, f := range near {
			last = max(last, f.end())
		}
	}
	if chance(rt, "rate", 10) {
		h.Rate = oneOf(rt, "removals per second", 0.04, 0.2, 1)
	}
	h.Lasts = last + seconds(rt, "after", 25, 60)
	return h
}

// excludes reports whether two faults are in no history: what a daemon saw between two restores is known to nobody,
// and an etcd that is down can neither be backed up nor restored.
func (f fault) excludes(o fault) bool {
	return f.restores() && o.restores() || f.restores() && o.Kind == down || f.Kind == down && o.restores()
}

// drawNear draws faults around an instant in which daemons act: a settle or a patience ends, or a lock is due.
func drawNear(rt *rapid.T, h history, kinds []kind) (all []fault) {
	const grace, settle = 2 * time.Second, 15 * time.Second
	instants := []time.Duration{settle}
	for _, f := range h.Faults {
		instants = append(instants, f.end()+settle)
		for _, o := range h.Holders {
			instants = append(instants, f.end()+o.TTL+grace)
		}
	}
	for _, o := range h.Holders {
		if o.Dies > 0 && o.Interval > 0 {
			instants = append(instants, o.Start+(o.Dies-o.Start).Truncate(o.Interval)+o.TTL+grace)
		}
	}
	at := oneOf(rt, "near", instants...)
	for range rapid.IntRange(1, 3).Draw(rt, "faults near") {
		f := drawFault(rt, h.Replicas, kinds)
		if slices.ContainsFunc(slices.Concat(h.Faults, all), f.excludes) {
			continue
		}
		f.At = max(0, at+time.Duration(even(rt, "from", 2000)-1500)*time.Millisecond)
		all = append(all, f)
		if f.blocks() && f.Who == everyone && chance(rt, "hosts too", 50) { // holders lose time that daemons do not see
			f.Kind, f.Who, f.At, f.For = refused, hosts, f.At-time.Second, f.For+time.Second
			all = append(all, f)
		}
	}
	return all
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
	return []kind{unreachable, unreachable, refused, unanswered, noLeader, slowDisk, slowDisk, lag, latency, lateAnswers, noSpace, noSpace, corrupt, broken, tokens, compacted, logFull,
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
	case lag, latency, lateAnswers:
		f.By = oneOf(rt, "by", 50*time.Millisecond, 500*time.Millisecond, 3*time.Second)
	case broken, tokens, compacted:
		f.Who, f.For = everyone, 0
	case rolledBack, newCluster, bumped:
		f.Who, f.For, f.By, f.Writes = everyone, 0, seconds(rt, "age", 0, 30), oneOf(rt, "writes", 0, 100)
	}
	return f
}
