package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
)

// judged runs a history in which no promise may be broken, with edits of the configuration.
func judged(t *testing.T, h history, edits ...func(*config.Config)) *judge {
	t.Helper()
	j := run(t, h, without{config: func(c *config.Config) {
		for _, edit := range edits {
			edit(c)
		}
	}})
	for _, v := range j.violations {
		t.Errorf("%s at %s: %s\n%s", v.promise, v.at, v.text, h)
	}
	return j
}

// gone returns when a daemon removed a lock, zero for never.
func (j *judge) gone(name string) time.Duration {
	for _, r := range j.removed {
		if r.name == name {
			return r.at
		}
	}
	return 0
}

func s(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// lease is a holder that renews every third of its time, and tries again after 20 s.
func lease(name string, start, ttl float64) holder {
	return holder{Name: name, Start: s(start), Interval: s(ttl / 3), TTL: s(ttl), Retry: s(20), LockedAt: true, AliveAt: true}
}

// drift is what clocks that drift add to the due of a lock with such a TTL.
func drift(ttl float64) float64 { return ttl * 500 / 1e6 }

func (h holder) dies(at float64) holder { h.Dies = s(at); return h }

func TestA_DeadlinesLongPastAreTheNormalCaseAfterAnOutage(t *testing.T) {
	mute := lease("a", 20, 60)
	mute.AliveAt = false
	slow := lease("a", 20, 60)
	slow.Clock.Offset = -s(420)
	for name, h := range map[string]history{
		"daemon restarts while etcd is away": {Replicas: 1, Lasts: s(600), Holders: []holder{lease("a", 20, 60)},
			Faults: []fault{{Kind: refused, At: s(60), For: s(390)}, {Kind: killed, Who: replicas, At: s(200), For: s(5)}}},
		"restore of an old backup": {Replicas: 1, Lasts: s(600), Holders: []holder{lease("a", 20, 60)},
			Faults: []fault{{Kind: newCluster, At: s(420), By: s(380)}}},
		"our clock is fast, the client writes no alive_at": {Replicas: 1, Lasts: s(400), Clocks: []clock{{Offset: s(420)}}, Holders: []holder{mute}},
		"the holder is slow, and the daemon restarts": {Replicas: 1, Lasts: s(300), Holders: []holder{slow},
			Faults: []fault{{Kind: killed, Who: replicas, At: s(100), For: s(1)}}},
		"the leader has measured the holder, the standby has not": {Replicas: 2, Lasts: s(300), Holders: []holder{slow},
			Faults: []fault{{Kind: killed, Who: replicas, N: 2, At: s(100), For: s(1)}, {Kind: killed, Who: replicas, N: 1, At: s(130), For: s(100)}}},
	} {
		t.Run(name, func(t *testing.T) { require.Zero(t, judged(t, h).gone("a"), "its holder lives") })
	}
}

func TestB_ALockThatTakesTooLongToReadDelaysNoOther(t *testing.T) {
	big := lease(slow, 20, 20).dies(30)
	big.Big = 20 << 10
	j := judged(t, history{Replicas: 1, Lasts: s(200), Holders: []holder{big, lease("b", 20, 20).dies(30), lease("c", 60, 10).dies(61)},
		Faults: []fault{{Kind: unreadable, Who: replicas, At: 0, For: s(200)}}})
	require.Zero(t, j.gone(slow))
	require.InDelta(t, 26.7+20+2, j.gone("b").Seconds(), 0.1)
	require.InDelta(t, 60+10+2, j.gone("c").Seconds(), 0.1)
}

// Locks read alone are not limited to a few at a time: each of these has a living lock nested in
// it, or a big value.
func TestB_LocksReadAloneDoNotWaitForEachOther(t *testing.T) {
	const n = 1_000
	for name, size := range map[string]int{"nested": 0, "big": 20 << 10} {
		t.Run(name, func(t *testing.T) {
			h := history{Replicas: 1, Lasts: s(200), Faults: []fault{{Kind: latency, Who: replicas, At: s(30), For: s(170), By: s(0.002)}}}
			for i := range n {
				o := lease(fmt.Sprint("p", i), 20, 30).dies(21)
				o.Big = size
				if h.Holders = append(h.Holders, o); size == 0 {
					h.Holders = append(h.Holders, lease(fmt.Sprintf("p%d/child", i), 22, 300))
				}
			}
			j := judged(t, h)
			late, delayed := time.Duration(0), 0
			for i := range n {
				gone := j.gone(fmt.Sprint("p", i))
				require.NotZero(t, gone)
				due := s(52)
				if gone > s(52+60) { // most are delayed by the storm
					due += s(120)
					delayed++
				}
				late = max(late, gone-due)
			}
			t.Logf("%d due at once: all gone %s after due", delayed, late)
			require.Less(t, late, s(4), "one by one they would take minutes")
		})
	}
}

// calm has no storms.
func calm(c *config.Config) { c.Reaper.Storm.MinLocks = 0 }

// Locks that cannot be read keep no other from being read alone: neither when they are due for the
// first time, nor at their next attempts.
func TestB_LocksThatTakeTooLongToReadDelayNoOtherLargeLock(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(200), Faults: []fault{{Kind: unreadable, Who: replicas, For: s(200)}}}
	for i := range 16 {
		o := lease(fmt.Sprintf("%s/%d", slow, i), 20, 20).dies(22) // due at 42 s
		o.Big = 20 << 10
		h.Holders = append(h.Holders, o)
	}
	for name, start := range map[string]float64{"b": 20, "c": 25, "d": 100} {
		o := lease(name, start, 20).dies(start + 1)
		o.Big = 20 << 10
		h.Holders = append(h.Holders, o)
	}
	j := judged(t, h, calm)
	require.InDelta(t, 42, j.gone("b").Seconds(), 1.6, "the time limit of a read, for each eight of them")
	require.InDelta(t, 47, j.gone("c").Seconds(), 0.1)
	require.InDelta(t, 122, j.gone("d").Seconds(), 0.1)
}

// It delays a batch once, by no more than the time limit of a read, however often it is tried.
func TestB_ASmallLockThatTakesTooLongToReadDelaysNoOther(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(200), Holders: []holder{lease(slow, 20, 20).dies(30), lease("b", 20, 20).dies(30)},
		Faults: []fault{{Kind: unreadable, Who: replicas, For: s(200)}}}
	for i := range 30 {
		start := 30 + 3.7*float64(i)
		h.Holders = append(h.Holders, lease(fmt.Sprint("n", i), start, 20).dies(start+1))
	}
	j := judged(t, h, calm)
	require.InDelta(t, 26.7+20+2, j.gone("b").Seconds(), 0.6)
	for i := range 30 {
		require.InDelta(t, 52+3.7*float64(i), j.gone(fmt.Sprint("n", i)).Seconds(), 0.1)
	}
	require.Zero(t, j.gone(slow))
}

// Where each answer takes long, etcd is the cause and not one lock: batches go on.
func TestB_ASlowNetworkIsNoReasonToReadAlone(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(250), Faults: []fault{{Kind: latency, Who: replicas, At: s(45), For: s(205), By: s(0.8)}}}
	for i := range 1_000 {
		h.Holders = append(h.Holders, lease(fmt.Sprint("p", i), 20, 30).dies(21))
	}
	j := judged(t, h)
	late := time.Duration(0)
	for _, r := range j.removed {
		if r.at > s(172) {
			late = max(late, r.at-s(172))
		}
	}
	require.Len(t, j.removed, 1_000)
	t.Logf("900 due at once: all gone %s after due", late)
	require.Less(t, late, s(60))
}

// cutOff are holders whose network fails at 60 s for a while, the daemons' does not.
func cutOff(count int, lasts float64) history {
	h := history{Replicas: 1, Lasts: s(60 + lasts + 60), Faults: []fault{{Kind: unreachable, Who: hosts, At: s(60), For: s(lasts)}}}
	for i := range count {
		o := lease(fmt.Sprintf("job-%d", i), 20+float64(i)*10/float64(count), 30)
		h.Holders = append(h.Holders, o)
	}
	return h
}

func TestC_AStormBoundsWhatAFaultUnseenByUsCosts(t *testing.T) {
	for _, minutes := range []float64{1, 2, 5} {
		j := judged(t, cutOff(1000, 60*minutes))
		early := 0
		for _, r := range j.removed {
			if r.at < s(60+120) {
				early++
			}
		}
		t.Logf("fault of %v min: %d of 1000 living holders removed, %d of them within two minutes", minutes, len(j.removed), early)
		require.LessOrEqual(t, early, 100)
	}
}

func TestC_AStormAfterARestart(t *testing.T) {
	h := cutOff(200, 100)
	h.Faults = append(h.Faults, fault{Kind: killed, Who: replicas, At: s(70), For: s(1)})
	require.LessOrEqual(t, len(judged(t, h).removed), 20)
}

func TestC_AnAttackerDelaysAnHonestLockByNoMoreThanTheDelay(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(300), Holders: []holder{lease("honest", 20, 30).dies(60)}}
	for i := range 170 {
		o := lease(fmt.Sprintf("attack-%d", i), 20, 5)
		o.Interval, o.TTL = 0, s(5+float64(i)/3)
		h.Holders = append(h.Holders, o)
	}
	j := judged(t, h)
	require.NotZero(t, j.gone("honest"))
	require.LessOrEqual(t, j.gone("honest"), s(60+30+2+120+1))
}

func TestD_AClockThatWasSetBackWhileNobodyLooked(t *testing.T) {
	h := holder{Name: "d", Start: s(20), Interval: s(40), TTL: s(60), Retry: s(20), LockedAt: true, AliveAt: true, Clock: clock{Steps: []step{{s(50), -s(90)}}}}
	j := judged(t, history{Replicas: 1, Lasts: s(300), Holders: []holder{h}, Faults: []fault{{Kind: unanswered, Who: replicas, At: s(59), For: s(4)}}})
	require.Zero(t, j.gone("d"))
}

// What is learned late waits for its patience, and not for the outage before that once more.
func TestE_AnOutageBeforeARenewalWasLearnedIsNotInItsPatience(t *testing.T) {
	for alive, patience := range map[bool]float64{true: 30, false: 300} {
		h := lease("e", 20, 30).dies(55)
		h.AliveAt = alive
		j := judged(t, history{Replicas: 1, Lasts: s(420), Holders: []holder{h}, Faults: []fault{
			{Kind: lag, Who: replicas, At: s(40), For: s(30), By: s(0.2)}, {Kind: unreachable, At: s(50.1), For: s(8)}}})
		require.InDelta(t, 58.1+patience+2, j.gone("e").Seconds(), 2, "learned at 58.1 s")
	}
}

// A daemon that starts during an outage finds a dead lock after it.
func TestS6_ALockFoundAfterAnOutageWaitsForItsPatienceAlone(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(250), Holders: []holder{lease("a", 20, 60).dies(32)}, Faults: []fault{
		{Kind: refused, At: s(50), For: s(60)}, {Kind: killed, Who: replicas, At: s(55), For: s(5)}}})
	require.InDelta(t, 110+60+2, j.gone("a").Seconds(), 9, "a pause before it lists again, and not the 50 s since its start")
}

// The probe that ends the outage is carried out before a renewal that was made in it.
func TestS3_AnUnstampedRenewalCarriedOutAfterAnOutage(t *testing.T) {
	h := holder{Name: "a", Start: s(20.03), Interval: s(1), TTL: s(3), Retry: s(1), LockedAt: true}
	for name, faults := range map[string][]fault{
		"at its end":       {{Kind: slowDisk, At: s(60), For: s(4.95)}},
		"0.9 s after that": {{Kind: slowDisk, At: s(60), For: s(4)}, {Kind: latency, Who: hosts, At: s(60), For: s(0.5), By: s(4.9)}},
	} {
		j := judged(t, history{Replicas: 1, Lasts: s(90), Holders: []holder{h}, Faults: faults})
		require.Zero(t, j.gone("a"), "%s: made at 60.03 s, due not before 69 s", name)
	}
}

// A renewal at 99 s, which the watch shows after the outage. Its holder tries again after 350 s in which it could,
// of the 400 s that it has; patience is 300 s.
func TestS3_AnOutageCountsForWhatWasLearnedAfterIt(t *testing.T) {
	h := holder{Name: "a", Start: s(33), Interval: s(66), TTL: s(400), Retry: s(650), LockedAt: true, AliveAt: true, Stall: s(100), StallsFor: s(299)}
	j := judged(t, history{Replicas: 1, Lasts: s(1150), Holders: []holder{h}, Faults: []fault{
		{Kind: lag, Who: replicas, At: s(98), For: s(3), By: s(3)}, {Kind: refused, At: s(99.5), For: s(600)}}})
	require.Zero(t, j.gone("a"), "due not before 1101 s, and it tries at 1049 s")
}

// The renewal at 59.9 s arrives after 61.8 s, as the watch lags and the probe does not.
func TestS3_AnOutageCountsInFullWhereTheWatchLags(t *testing.T) {
	h := holder{Name: "a", Start: s(23.9), Interval: s(6), TTL: s(18), Retry: s(22.1), LockedAt: true}
	j := judged(t, history{Replicas: 1, Lasts: s(200), Holders: []holder{h}, Faults: []fault{
		{Kind: slowDisk, At: s(60), For: s(9)}, {Kind: refused, Who: hosts, At: s(60), For: s(9)},
		{Kind: lag, Who: replicas, At: s(10), For: s(180), By: s(1.9)}}})
	require.Zero(t, j.gone("a"), "due not before 88.9 s, and it tries at 88 s")
}

// living are holders of all ages.
func living(count int) (all []holder) {
	for i := range count {
		all = append(all, lease(fmt.Sprintf("l-%d", i), 20+float64(i), 12))
	}
	return all
}

// regression is a restore that takes the lock "lost" back, or shows "older" older than
// before, while the holder of "dead" is dead, whose lock is due at 62 s.
func regression(k kind, at float64, holders ...holder) history {
	h := history{Replicas: 1, Lasts: s(150), Holders: append(holders, lease("dead", 20, 30).dies(32), lease("lives", 20, 12)),
		Faults: []fault{{Kind: k, At: s(at), By: s(10), Writes: 500}}}
	h.Holders[len(h.Holders)-1].Start = s(65)
	return h
}

// Without the comparison of the write at the newest revision, "dead" goes at 62 s.
func TestF_RolledBackInPlaceAndWrittenBeyond(t *testing.T) {
	h := regression(rolledBack, 49.9, holder{Name: "lost", Start: s(45), TTL: s(60), Retry: s(20), LockedAt: true, Dies: s(46)})
	h.Faults = append(h.Faults, fault{Kind: unreachable, Who: replicas, At: s(48.5), For: s(1.5)})
	j := judged(t, h)
	require.GreaterOrEqual(t, j.gone("dead"), s(65), "settled again")
	require.Equal(t, 1, j.begun["regressed"])
}

// Without the look for keys older than seen there is no such hold, although the watch
// was down, and what was learned late has patience, which prevent removals as well.
func TestF2_RestoredWithABumpedRevision(t *testing.T) {
	j := judged(t, regression(bumped, 50, lease("older", 20, 12)))
	require.GreaterOrEqual(t, j.gone("dead"), s(65), "settled again")
	require.Zero(t, j.gone("older"), "its holder lives")
	require.Equal(t, 1, j.begun["regressed"])
}

// A daemon that finds a restore starts patience again, and an earlier outage does not count in addition:
// the holder had time enough to renew since.
func TestF2_AnOutageBeforeAnotherHistoryIsOver(t *testing.T) {
	b := lease("b", 2.9, 18).dies(4.75)
	j := judged(t, history{Replicas: 1, Lasts: s(100), Holders: []holder{b, lease("a", 0.5, 18)},
		Faults: []fault{{Kind: unanswered, At: s(2.8), For: s(30)}, {Kind: bumped, At: s(49), By: s(18)}}})
	require.InDelta(t, 49+18+2, j.gone("b").Seconds(), 1)
	require.Zero(t, j.gone("a"))
}

// A daemon that has not seen the write that a restore took back knows the one before it, and has
// observed that live.
func TestF_AWriteThatNobodySawIsTakenBack(t *testing.T) {
	for _, k := range []kind{rolledBack, bumped} {
		j := judged(t, history{Replicas: 1, Lasts: s(120), Holders: []holder{lease("a", 20, 30).dies(41)},
			Faults: []fault{{Kind: unreachable, Who: replicas, At: s(39), For: s(4)}, {Kind: k, At: s(42), By: s(4)}}})
		require.InDelta(t, 60+2+4, j.gone("a").Seconds(), 1, k)
	}
}

// A renewal that is on its way for 4.8 s looks like a clock that is slow by as much, and there is no leader.
func TestS6_AStampThatWasLongOnItsWay(t *testing.T) {
	j := judged(t, history{Replicas: 2, Lasts: s(120),
		Holders: []holder{{Name: "a", Start: s(20.1), Interval: s(10), TTL: s(21), Retry: s(20), LockedAt: true, AliveAt: true, Dies: s(46)}},
		Faults: []fault{
			{Kind: killed, Who: replicas, N: 2, At: s(0.1), For: s(10)},
			{Kind: unreachable, Who: hosts, At: s(40), For: s(4.95)},
			{Kind: killed, Who: replicas, N: 1, At: s(66.5), For: s(40)},
		}})
	require.InDelta(t, 61.1+2+4.85+5, j.gone("a").Seconds(), 1)
}

// By the clock of the holder, which stepped back, each of its deadlines after 90 s is one that it
// made before.
func TestS6_TheSameDeadlineMadeAgain(t *testing.T) {
	a := lease("a", 0, 15)
	a.Clock.Steps = []step{{s(5), -s(90)}}
	require.Zero(t, judged(t, history{Replicas: 2, Lasts: s(93.8), Holders: []holder{a}}).gone("a"))
}

func TestF_LivingHoldersSurviveEveryRestore(t *testing.T) {
	for _, k := range []kind{rolledBack, newCluster, bumped} {
		for _, writes := range []int{0, 1000} {
			j := judged(t, history{Replicas: 2, Lasts: s(150), Holders: living(10), Faults: []fault{
				{Kind: unreachable, Who: replicas, At: s(58), For: s(4)}, {Kind: k, At: s(60), By: s(15), Writes: writes}}})
			require.Empty(t, j.removed, "%s, %d writes", k, writes)
		}
	}
}

func TestS6_AStepBackWhileARemovalWaits(t *testing.T) {
	first, second := lease("a", 1, 60).dies(20), lease("b", 1, 60).dies(20)
	h := history{Replicas: 1, Lasts: s(400), Rate: 0.01, Clocks: []clock{{Steps: []step{{At: s(100), By: -s(120)}}}},
		Holders: []holder{first, second}}
	j := judged(t, h)
	due := 1 + 60 + 2 + 120.0 // by the daemon's clock
	later := max(j.gone("a"), j.gone("b"))
	require.Greater(t, later.Seconds(), due, "the other waits for the rate limit, 100 s, and for the clock")
	require.NotZero(t, min(j.gone("a"), j.gone("b")))
}

// The clock is corrected in the instant in which a lock comes due by it: the worker finds the lock early, the table due.
func TestS6_AStepBackAtDue(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(90), Clocks: []clock{{Offset: s(90), Steps: []step{{At: s(20.9065), By: -s(90)}}}},
		Holders: []holder{{Name: "a", Start: s(5.9), TTL: s(13), Retry: s(20), LockedAt: true}}}
	require.Less(t, judged(t, h).gone("a"), s(23))
}

// The holder's clock is 1.9 s slow, which counts as 0, and loses 500 ppm, as far as NTP slews. NTP may slew that of
// the daemon as well, which makes all the others look slower still.
func TestS2_ADriftSinceTheStamp(t *testing.T) {
	for ours, theirs := range map[int]int{0: -500, 500: -1000} {
		h := holder{Name: "a", Start: s(20), Interval: s(590), TTL: s(600), Retry: s(5), LockedAt: true, AliveAt: true, Clock: clock{Offset: -s(1.9), Drift: theirs}}
		h.Stall, h.StallsFor = s(609), s(30)
		j := judged(t, history{Replicas: 1, Lasts: s(700), Holders: []holder{h}, Clocks: []clock{{Slewed: ours}}})
		passes := 20 + 600*(1-float64(theirs)/1e6)
		require.GreaterOrEqual(t, j.gone("a").Seconds(), passes, "when its own clock passes the deadline")
		require.Less(t, j.gone("a").Seconds(), passes+3)
	}
}

// As above, but renewals carry a stamp only sometimes, or another locked_at: an observation of before is older than that.
func TestS2_ADriftSinceAnObservationOfBefore(t *testing.T) {
	for renews, lockedAt := range map[string]bool{"a": false, "a-": false, "aa-": true, "l": true, "l-": true, "al-": true} {
		t.Run(renews, func(t *testing.T) {
			h := holder{Name: "a", Start: s(20), Interval: s(20), TTL: s(60), Retry: s(5), LockedAt: lockedAt, Renews: renews, Clock: clock{Offset: -s(1.9), Drift: -500}}
			h.Stall, h.StallsFor = s(6000), s(39.5)
			j := judged(t, history{Replicas: 1, Lasts: s(6100), Holders: []holder{h}})
			require.Zero(t, j.gone("a"), "it renews at 6039.5 s, before its own clock passes the deadline")
		})
	}
}

// A stopped process is simulated as far as etcd's answers wait for it.
func TestF3_WhatWaitedForUsMeasuresNoClock(t *testing.T) {
	h := history{Replicas: 1, Lasts: s(120), Faults: []fault{{Kind: unanswered, Who: replicas, At: s(40), For: s(8)}}}
	for i := range 4 {
		o := lease(fmt.Sprintf("f-%d", i), 41, 20).dies(42)
		o.Host = i
		h.Holders = append(h.Holders, o)
	}
	j := judged(t, h)
	for i := range 4 {
		require.InDelta(t, 48+20+2, j.gone(fmt.Sprintf("f-%d", i)).Seconds(), 2, "patience, and not the outage of our own connection")
	}
}

func TestG_ALogOnAFullDisk(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(100), Holders: []holder{lease("g", 5, 10).dies(6)}, Faults: []fault{{Kind: logFull, Who: replicas, At: s(10), For: s(50)}}})
	require.Greater(t, j.gone("g"), s(60))
}

func TestH_AClockOfOursThatWasWrongForAWhile(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]clock{
		"a day back for 3 s":                {Steps: []step{{s(40), -day}, {s(43), day}}},
		"three days slow until NTP sets it": {Offset: -3 * day, Steps: []step{{s(60), 3 * day}}},
		"a day ahead for 3 s":               {Steps: []step{{s(40), day}, {s(43), -day}}},
	} {
		t.Run(name, func(t *testing.T) {
			j := judged(t, history{Replicas: 1, Lasts: s(200), Clocks: []clock{c}, Holders: []holder{lease("h", 20, 15).dies(36), lease("lives", 20, 15)}})
			require.NotZero(t, j.gone("h"))
			require.Zero(t, j.gone("lives"))
		})
	}
}

// Without rule 7 it goes at 400 s, when its patience is long over.
func TestH_AClockOfOursThatWasSetForwardForGood(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(720), Clocks: []clock{{Steps: []step{{s(400), 24 * time.Hour}}}},
		Holders: []holder{{Name: "h", Start: s(20), TTL: s(600), Retry: s(20)}}})
	require.InDelta(t, 20+600+2, j.gone("h").Seconds(), 1, "as if the clock had not been set")
}

func TestFaultsOfEtcd(t *testing.T) {
	dead, alive := lease("dead", 20, 30).dies(40), lease("alive", 20, 30)
	for name, faults := range map[string][]fault{
		"leader killed":            {{Kind: killed, Who: replicas, N: 1, At: s(65), For: s(60)}},
		"all replicas restarted":   {{Kind: killed, Who: replicas, At: s(65), For: s(3)}},
		"NOSPACE":                  {{Kind: noSpace, At: s(60), For: s(20)}},
		"CORRUPT":                  {{Kind: corrupt, At: s(60), For: s(20)}},
		"compacted meanwhile":      {{Kind: unreachable, Who: replicas, At: s(50), For: s(20)}, {Kind: compacted, At: s(60)}},
		"tokens expired":           {{Kind: tokens, At: s(60)}, {Kind: broken, At: s(61)}},
		"a lagging member":         {{Kind: lag, Who: replicas, N: 1, At: s(30), For: s(60), By: s(3)}},
		"no leader":                {{Kind: noLeader, At: s(60), For: s(15)}},
		"a slow disk":              {{Kind: slowDisk, At: s(60), For: s(8)}},
		"etcd killed":              {{Kind: down, At: s(60), For: s(20)}},
		"rolled back":              {{Kind: rolledBack, At: s(50), By: s(5), Writes: 100}},
		"late answers":             {{Kind: lateAnswers, At: s(30), For: s(60), By: s(0.4)}},
		"connections reset":        {{Kind: broken, At: s(60)}, {Kind: broken, At: s(66)}},
		"etcd's answers are lost":  {{Kind: unanswered, At: s(65), For: s(10)}},
		"a slow network of a host": {{Kind: latency, Who: hosts, At: s(30), For: s(60), By: s(2)}},
	} {
		h := history{Replicas: 2, Lasts: s(260), Holders: []holder{dead, alive}, Faults: faults}
		for on, run := range map[string]func(*testing.T, history, without) *judge{"memory": run, "server": runReal} {
			if on == "server" && slices.ContainsFunc(faults, func(f fault) bool { return f.Kind == noLeader || f.Kind == lag }) {
				continue // there is one member
			}
			t.Run(name+"/"+on, func(t *testing.T) {
				j := run(t, h, without{})
				require.Empty(t, j.violations)
				require.NotZero(t, j.gone("dead"))
				require.Zero(t, j.gone("alive"))
			})
		}
	}
}

func TestNothingElseIsTouched(t *testing.T) {
	undated, odd, orphan := lease("u", 20, 20).dies(30), lease("m", 20, 20).dies(30), lease("o", 20, 20)
	undated.Deadline, odd.Deadline = "none", "soon"
	orphan.Releases, orphan.Blind = s(30), true
	j := judged(t, history{Replicas: 1, Lasts: s(120), Holders: []holder{undated, odd, orphan, lease("a", 20, 20).dies(30), lease("a/b", 20, 20)}})
	require.Zero(t, j.gone("u")+j.gone("m")+j.gone("a/b"))
	require.NotZero(t, j.gone("a"))
	require.GreaterOrEqual(t, j.gone("o"), s(90))
}

// The next probe is answered before the gate looks again.
func TestI_AFailedProbeIsAHoldHoweverSoonTheNextIsAnswered(t *testing.T) {
	var began time.Time
	h := holder{Name: "a", Start: s(20), Interval: s(20), TTL: s(30), Retry: s(14), LockedAt: true, AliveAt: true}
	timesOut := func(req memetcd.Message) { // 17 ms after a look of the gate
		if began.IsZero() {
			began = time.Now()
		}
		if _, probe := req.(*pb.AlarmRequest); probe && time.Since(began) > s(59.6) && time.Since(began) < s(60.5) {
			time.Sleep(s(5.017))
		}
	}
	j := run(t, history{Replicas: 1, Lasts: s(120), Holders: []holder{h}, Faults: []fault{{Kind: unreachable, At: s(59.5), For: s(5.51)}}}, without{request: timesOut})
	require.Empty(t, j.violations)
	require.Zero(t, j.gone("a"), "its holder tries again at 79 s, within settle")
}

// The library resumes the watch past the revision of the store, which shows nothing.
func TestJ_ARollbackBehindTheWatchIsNoticedAtOnce(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(130), Holders: append(living(4), lease("dead", 20, 30).dies(32)),
		Faults: []fault{{Kind: broken, At: s(58.49)}, {Kind: rolledBack, At: s(58.5), By: s(15)}}})
	require.GreaterOrEqual(t, j.gone("dead"), s(58.5+15))
}

// A listing waits for the watch, which has been silent, until the library resumes that on another cluster.
func TestJ_AnotherClusterIsNoticedWhileAListingWaits(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(80), Resync: s(5), Holders: living(1),
		Faults: []fault{{Kind: silentWatch, Who: replicas, At: s(34), For: s(8.9)}, {Kind: newCluster, At: s(42.8), By: s(15)}}})
	require.Less(t, j.of[j.w.daemons[0]].forgot, s(44), "not after the freshness")
}

// It is set right while a worker has the orphan.
func TestK_AClockOfOursThatWasWrongDelaysNoOrphan(t *testing.T) {
	day, o := 24*time.Hour, lease("o", 5, 30)
	o.Releases, o.Blind = s(10), true // due at 70 s
	j := judged(t, history{Replicas: 1, Lasts: s(900), Holders: []holder{o}, Clocks: []clock{{Steps: []step{{s(70.2), -day}, {s(73.2), day}}}},
		Faults: []fault{{Kind: latency, Who: replicas, At: s(68), For: s(10), By: s(0.5)}}})
	require.NotZero(t, j.gone("o"))
}

func TestL_ARenewalToTheSameDeadlineIsAWrite(t *testing.T) {
	h := holder{Name: "a", Start: s(20), Interval: s(40), TTL: s(70), Retry: s(20), LockedAt: true, Deadline: "1766620890", Dies: s(61)}
	judged(t, history{Replicas: 1, Lasts: s(500), Holders: []holder{h}, Faults: []fault{{Kind: unreachable, Who: replicas, At: s(58), For: s(14)}}})
}

func TestM_AnOutcomeIsLoggedOnceTheDiskHasRoomAgain(t *testing.T) {
	judged(t, history{Replicas: 1, Lasts: s(150), Holders: []holder{lease("a", 20, 30).dies(32)},
		Faults: []fault{{Kind: latency, Who: replicas, At: s(60), For: s(5), By: s(0.6)}, {Kind: logFull, Who: replicas, At: s(63), For: s(4)}}})
}

// The removal has no answer for 4.9 s, and an outage meanwhile delays the lock, which is then due
// again: it is not tried a second time before the outcome.
func TestS7_ARemovalWithoutAnAnswerIsNotBegunAgain(t *testing.T) {
	j := judged(t, history{Replicas: 1, Lasts: s(100), Holders: []holder{lease("a", 20, 20).dies(21)},
		Faults: []fault{
			{Kind: latency, Who: replicas, At: s(41.995 + drift(20)), For: s(0.01), By: s(4.9)}, // of the removal
			{Kind: unanswered, Who: replicas, At: s(42.05), For: s(2.55)},
			{Kind: latency, Who: replicas, At: s(45.5), For: s(0.2), By: s(0.6)}, // would be of the next read, so that the lock is read alone
		}})
	require.InDelta(t, 42+drift(20)+4.9, j.gone("a").Seconds(), 0.1)
}
