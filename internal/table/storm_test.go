package table

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

// stormy are the defaults of the configuration.
func stormy(o *Options) {
	o.Rules.Storm = config.Storm{MinLocks: 20, Fraction: 0.1, Window: time.Minute, Delay: 2 * time.Minute}
}

const (
	stormMin   = 20
	stormDelay = 2 * time.Minute
)

// acquireAll takes n locks at once, each with its own deadline.
func (w *world) acquireAll(prefix string, n int, auto func(i int) time.Duration) {
	var events []Event
	for i := range n {
		events = append(events, w.put(fmt.Sprintf("%s%04d", prefix, i), holder(0).acquires(auto(i)))...)
	}
	w.live(events)
}

func at1s(int) time.Duration { return time.Second }

// releaseAll deletes locks.
func (w *world) releaseAll(names []string) {
	var events []Event
	for _, name := range names {
		events = append(events, w.del(name)...)
	}
	w.live(events)
}

// Rule 9: beyond the threshold each further lock is delayed, once.
func TestS3_StormDelaysEachFurtherLock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 100, at1s)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), stormMin)
		require.Equal(t, 80, w.stats().Storm.Waiting())
		w.pass(stormDelay - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Len(t, w.taken(), 80)
		require.Zero(t, w.stats().Storm.Waiting())
		w.pass(time.Hour)
		require.Empty(t, w.taken())
	}, stormy)
}

// Rule 9: status and log say how many a storm delays until when, and how many were removed before it.
// lines is a log that the table writes while a test reads it.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

// take returns what was written since it was called before.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.Reset()
	return l.String()
}

func TestS3_StormIsReported(t *testing.T) {
	var log lines
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 10, at1s)
		w.acquireAll("later", 25, func(int) time.Duration { return 11 * time.Second })
		w.pass(time.Second + grace)
		w.releaseAll(w.taken())
		require.Nil(t, w.stats().Storm)
		require.Empty(t, log.take())
		w.pass(10 * time.Second)
		until := present().Add(stormDelay).UTC()
		require.Equal(t, &api.Storm{Delayed: 15, RemovedBefore: 10, Until: until}, w.stats().Storm)
		w.releaseAll(w.taken())
		require.Equal(t, &api.Storm{Delayed: 15, RemovedBefore: 20, Until: until}, w.stats().Storm, "they are removed after it began")
		require.Regexp(t, `^[^\n]* msg="`+api.LogStormBegins+`" came_due=20 removed_before=10 of=35 delay=2m0s\n$`, log.take())
		w.releaseAll(w.delayed()[:5])
		require.Equal(t, 10, w.stats().Storm.Delayed)
		require.Equal(t, 20, w.stats().Storm.RemovedBefore, "the delayed ones are not before it")
		w.pass(stormDelay)
		require.Nil(t, w.stats().Storm)
		require.Regexp(t, `^[^\n]* msg="`+api.LogStormEnds+`" delayed=15 removed_before=20\n$`, log.take())
	}, stormy, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
}

func TestS3_StormIsOffWithoutAMinimum(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 100, at1s)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), 100)
	})
}

// Both the minimum and the fraction of all dated locks must have come due.
func TestS3_StormIsAFractionOfAllDatedLocks(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("held", 200, func(int) time.Duration { return time.Hour })
		undated := fields(time.Hour, 0)
		delete(undated, "auto_unlock_at")
		for i := range 1_000 { // which do not count
			w.put(fmt.Sprint("undated", i), undated)
			w.put(fmt.Sprint("orphan", i), map[string]string{"alert_at": at(0)})
		}
		w.listing(true)
		w.acquireAll("dead", 100, at1s)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), 30)
		require.Equal(t, 70, w.stats().Storm.Waiting())
	}, stormy)
}

// Orphans have no holder that a fault could cut off.
func TestS3_OrphansMakeNoStormAndAreNotDelayed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.live(w.put(fmt.Sprint(i), map[string]string{"alert_at": at(0)}))
		}
		w.pass(orphanGrace - grace - time.Second)
		w.acquireAll("lock", stormMin+1, at1s)
		w.pass(time.Second + grace - 1)
		require.Empty(t, w.taken())
		w.pass(1)
		require.Len(t, w.taken(), 100+stormMin)
		require.Equal(t, 1, w.stats().Storm.Waiting())
	}, stormy)
}

// What came due longer than the window ago is not part of a storm.
func TestS3_StormIsWithinTheWindow(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 100, func(i int) time.Duration { return time.Duration(i) * 4 * time.Second })
		taken := 0
		for range 410 {
			time.Sleep(time.Second)
			taken += len(w.take())
		}
		require.Equal(t, 100, taken, "15 in a minute")
		require.Zero(t, w.stats().Storm.Waiting())
	}, stormy)
}

// Once for each deadline: neither what a worker puts back, nor steps of our wall clock,
// nor a renewal that leaves the deadline as it is count a lock, or delay it, again.
func TestS3_StormCountsADeadlineOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", stormMin, at1s)
		w.pass(time.Second + grace)
		for _, again := range []func(name string){
			func(name string) { w.postpone(name, w.token(name), 0) },
			func(name string) { w.postpone(name, w.token(name), time.Second); w.pass(time.Second) },
			func(name string) { w.postpone(name, w.token(name), UntilModified) },
			func(name string) { w.live(w.put(name, map[string]string{"purpose": "x"})) },
			func(name string) {
				w.live(w.put(name, map[string]string{"auto_unlock_at": w.get(name).AutoUnlockText()}))
			},
			func(string) { w.clock(-time.Hour); w.clock(0) },
		} {
			w.taken()
			for _, name := range w.names() {
				again(name)
			}
		}
		w.pass(5*time.Minute + grace) // what a step keeps it for
		for _, name := range w.names() {
			w.postpone(name, w.token(name), 0)
		}
		require.Len(t, w.taken(), stormMin, "none was delayed")

		w.acquireAll("new", stormMin, at1s)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), stormMin, "those before are not counted again")
		w.acquire("one more", 0, time.Second)
		w.pass(time.Second + grace)
		require.Empty(t, w.taken())
	}, stormy)
}

// Of locks that come due at the same instant every replica delays the same ones, however it
// learned of them.
func TestS3_StormDelaysTheSameLocksInEveryReplica(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			var events []Event
			for i := range 5 * stormMin {
				if backwards {
					i = 5*stormMin - 1 - i
				}
				events = append(events, w.put(fmt.Sprintf("%04d", i), holder(0).acquires(time.Second))...)
			}
			w.live(events)
			w.pass(time.Second + grace)
			delayed := w.delayed()
			slices.Sort(delayed)
			require.Len(t, delayed, 4*stormMin)
			require.Equal(t, fmt.Sprintf("%04d", stormMin), delayed[0])
		}, stormy)
	}
}

// Another deadline may be delayed again.
func TestS3_StormCountsEachDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", stormMin+1, at1s)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), stormMin)
		last := fmt.Sprintf("%04d", stormMin)
		w.live(w.put(last, holder(0).renews(time.Second)))
		require.Zero(t, w.stats().Storm.Waiting())
		require.Zero(t, w.observation(last).StormDelay)
		w.pass(time.Second + grace)
		require.Equal(t, 1, w.stats().Storm.Waiting(), "it came due again within the window")
		require.Equal(t, stormDelay, w.due(last))
		w.live(w.put(last, map[string]string{"auto_unlock_at": w.get(last).AutoUnlockText()}))
		require.Equal(t, stormDelay, w.due(last), "the same deadline")
		w.live(w.put(last, map[string]string{"alert_at": "garbage"}))
		require.Zero(t, w.stats().Storm.Waiting(), "a malformed lock waits for nothing")
		w.live(w.put(last, map[string]string{"alert_at": at(0)}))
		require.Equal(t, stormDelay, w.due(last))
		w.release(last)
		require.Zero(t, w.stats().Storm.Waiting())
	}, stormy)
}

func (w *world) delayed() (names []string) {
	for _, name := range w.names() {
		if w.observation(name).StormDelay > 0 {
			names = append(names, name)
		}
	}
	return names
}

// The delay and what outages add are on top of one another.
func TestS3_StormDelayAndAllowanceAddUp(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", stormMin+1, at1s)
		w.pass(time.Second + grace)
		one := w.delayed()[0]
		require.Equal(t, stormDelay, w.due(one))
		w.pass(time.Minute)
		w.outage(10 * time.Second)
		require.Equal(t, stormDelay-time.Minute+10*time.Second, w.due(one))
	}, stormy)
}

// History C: locks that an outage of etcd keeps are counted when they come due, not
// before.
func TestS3_StormIsNotSpentDuringAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 200, func(int) time.Duration { return time.Minute })
		start := time.Now()
		w.outageFrom(start, 10*time.Minute)
		w.pass(11 * time.Minute)
		require.Empty(t, w.taken())
		require.Zero(t, w.stats().Storm.Waiting())
		w.pass(grace)
		require.Len(t, w.taken(), stormMin)
		require.Equal(t, 200-stormMin, w.stats().Storm.Waiting())
	}, stormy)
}

// History C: after a restart, while their holders are cut off, locks are found past their
// deadlines and come due together.
func TestS3_StormAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		for i := range 200 {
			w.put(fmt.Sprint(i), holder(-time.Hour).acquires(time.Minute))
		}
		w.listing(false)
		w.pass(time.Minute + grace)
		taken := w.taken()
		require.Len(t, taken, stormMin)
		w.releaseAll(taken)
		w.pass(stormDelay - 1)
		require.Empty(t, w.taken())
		require.Equal(t, 200-stormMin, w.stats().Storm.Waiting())
	}, stormy)
}

// History C: the locks that were removed are still part of all.
func TestS3_StormDoesNotWaitWhereLocksAreRemoved(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("", 1_000, func(i int) time.Duration { return time.Duration(i) * 50 * time.Millisecond })
		removed := 0
		for range 55 {
			time.Sleep(time.Second)
			taken := w.taken()
			removed += len(taken)
			w.releaseAll(taken)
		}
		require.Equal(t, 100, removed)
		require.Equal(t, 900, w.stats().Storm.Waiting())
	}, stormy)
}

// Locks that came due long ago, and are removed now, do not make a storm of the others
// look small.
func TestS3_StormIsNotHiddenByOldBacklog(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("old", 1_000, func(i int) time.Duration { return time.Duration(i) * time.Second })
		w.pass(20 * time.Minute) // a hold keeps them all
		old := w.taken()
		require.Len(t, old, 1_000)
		w.acquireAll("living", 100, at1s)
		w.releaseAll(old)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), stormMin)
	}, stormy)
}

// Nor do locks that their holders released.
func TestS3_StormIsNotHiddenByReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("released", 1_000, func(int) time.Duration { return time.Hour })
		released := w.names()
		w.acquireAll("held", 200, func(int) time.Duration { return time.Hour })
		w.acquireAll("dead", 100, at1s)
		w.releaseAll(released)
		w.pass(time.Second + grace)
		require.Len(t, w.taken(), 30)
	}, stormy)
}

// cutOff simulates n holders with leases of a minute, renewed every 20 s, some at each
// second, and a fault between them and etcd from the first minute on. It returns how many
// of the living were removed: whatever is due is, at once.
func cutOff(t *testing.T, n int, fault time.Duration) (removed int) {
	inBubble(t, func(_ *testing.T, w *world) {
		name := func(i int) string { return fmt.Sprintf("%04d", i) }
		w.acquireAll("", n, func(int) time.Duration { return time.Minute })
		lost := make(map[string]bool)
		for second := range int((8 * time.Minute).Seconds()) {
			now := time.Duration(second) * time.Second
			if now < time.Minute || now >= time.Minute+fault {
				var events []Event
				for i := second % 20; i < n; i += 20 {
					if !lost[name(i)] {
						events = append(events, w.put(name(i), holder(0).renews(time.Minute))...)
					}
				}
				require.NoError(w.t, w.Apply(w.ctx, events))
			}
			for _, d := range w.take() {
				lost[d.Name] = true
				require.NoError(w.t, w.Apply(w.ctx, w.del(d.Name)))
			}
			time.Sleep(time.Second)
		}
		removed = len(lost)
	}, stormy)
	return removed
}

// The figures of rule 9: what a fault between holders and etcd costs that nobody sees.
func TestS3_HowManyLivingHoldersAFaultCosts(t *testing.T) {
	for fault, want := range map[time.Duration]int{
		30 * time.Second: 0, time.Minute: 100, 2 * time.Minute: 100, 5 * time.Minute: 1_000,
	} {
		require.Equal(t, want, cutOff(t, 1_000, fault), "%s", fault)
	}
	require.Equal(t, stormMin, cutOff(t, 50, 2*time.Minute))
}

// The other figure of rule 9: for how long an attacker with 170 locks, which come
// due again and again, keeps another's dead lock.
func TestS6_AnAttackDelaysADeadLockByTheStormDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.acquireAll("honest", 100, func(int) time.Duration { return 24 * time.Hour })
		w.acquireAll("attack", 170, at1s)
		for range 4 * 60 {
			if time.Now().Second()%30 == 0 {
				w.attack(170)
			}
			time.Sleep(time.Second)
		}
		w.acquire("dead", time.Second, time.Second)
		due := time.Now().Add(time.Second + grace)
		for range 10 * 60 {
			time.Sleep(time.Second)
			if slices.Contains(w.taken(), "dead") {
				require.Equal(t, stormDelay, time.Since(due))
				return
			}
			if time.Now().Second()%30 == 0 {
				w.attack(170)
			}
		}
		require.Fail(t, "still there")
	}, stormy)
}

// attack writes new deadlines, a second from now.
func (w *world) attack(n int) {
	var events []Event
	for i := range n {
		events = append(events, w.put(fmt.Sprintf("attack%04d", i), holder(0).renews(time.Second))...)
	}
	w.live(events)
	for _, name := range w.taken() {
		require.True(w.t, strings.HasPrefix(name, "attack"))
		w.postpone(name, w.token(name), 0)
	}
}

func TestWindowSlides(t *testing.T) {
	for _, width := range []time.Duration{time.Second, time.Minute, time.Hour + 7} {
		w := window{width: instant(width)}
		step := max(1, w.width/63)
		start := instant(time.Hour)/step*step - 1 // in the end of a slot
		for i := range 300 {                      // one each 300th of the width, for one width
			w.add(start + instant(i)*w.width/300)
		}
		end := start + 299*w.width/300
		require.Equal(t, 300, w.count(start+w.width-1), "nothing within the width is missed")
		require.InDelta(t, 150, w.count(end+w.width/2), 5, width)
		require.Zero(t, w.count(end+w.width+step), width)
		w.add(end + 100*w.width)
		require.Equal(t, 1, w.count(end+100*w.width), "a slot is used again")
	}
	var none window
	none.add(math.MaxInt32)
	require.Zero(t, none.count(math.MaxInt32), "no width, no window")
}
