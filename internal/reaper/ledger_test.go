package reaper

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

var tokens atomic.Int64

// removal is an attempt that needs no etcd, on a lock of its own.
func removal(name string) *attempt {
	return &attempt{record: lockstore.Record{Lock: protocol.Lock{Name: name, Token: tokens.Add(1)}}, verdict: verdict.Verdict{Trigger: verdict.Expiry}}
}

func TestS7_LedgerKeepsForTheRetention(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	for i := range 120 {
		l.self(removal(fmt.Sprint(i)))
		now = now.Add(time.Minute)
	}
	recent := l.Recent(1_000)
	require.Len(t, recent, 60)
	require.Equal(t, "119", recent[0].Name)
	require.Equal(t, "60", recent[59].Name)
	require.Equal(t, recent[:2], l.Recent(2))
	require.Empty(t, l.Recent(0))
	now = now.Add(time.Hour)
	require.Empty(t, l.Recent(10))
	require.Len(t, l.Page("", 1_000), 120, "the API shows a day")
	now = now.Add(ledgerTime)
	require.Empty(t, l.Page("", 1_000))
	require.Empty(t, l.forced.known)
	require.Zero(t, l.forced.bytes)
	require.Empty(t, l.forced.entries)

	l.self(removal("old"))
	now = now.Add(-30 * time.Minute)
	l.self(removal("after a step back"))
	recent = l.Recent(2)
	require.Equal(t, "after a step back", recent[0].Name)
	require.Equal(t, recent[1].At, recent[0].At)
	now = now.Add(ledgerTime + time.Hour)
	l.self(removal("new"))
	require.Len(t, l.forced.entries, 1, "also if nobody reads")
	now = now.Add(ledgerTime + time.Hour)
	require.Empty(t, l.Recent(2))
	require.Empty(t, l.forced.entries, "also if nothing is removed")
}

func TestS7_LedgerIsBoundedByBytes(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	const n = 60_000
	long := strings.Repeat("n", protocol.MaxName-10)
	for i := range n {
		l.self(removal(fmt.Sprint(long, i)))
	}
	recent := l.Recent(n)
	require.Less(t, len(recent), n)
	require.Greater(t, len(recent), n/2)
	require.Equal(t, fmt.Sprint(long, n-1), recent[0].Name)
	require.Equal(t, sizes(recent), l.forced.bytes)
	require.LessOrEqual(t, l.forced.bytes, ledgerBytes)
	page := l.Page("", n)
	require.LessOrEqual(t, sizes(page), shownLedgerBytes+sizeOf(&page[0]), "what people are shown at once is less")
	require.Greater(t, sizes(page), shownLedgerBytes/2)
	require.Equal(t, recent[0].Name, page[0].Name)
}

// Each text counts with its length, also where another entry is replaced, and the limit is included.
func TestLedgerCountsAllTexts(t *testing.T) {
	whole := api.Forced{Name: "name", Token: 1, Trigger: verdict.Expiry, By: api.Self}
	empty := sizeOf(&api.Forced{})
	require.Positive(t, empty)
	require.Equal(t, 4, sizeOf(&whole)-empty)
	for i, text := range []*string{&whole.UUID, &whole.Hostname, &whole.Owner, &whole.PID, &whole.Who, &whole.Reason} {
		before := sizeOf(&whole)
		*text = strings.Repeat("x", 100+i)
		require.Equal(t, 100+i, sizeOf(&whole)-before)
	}
	before := sizeOf(&whole)
	whole.Counted = make([]api.Counted, 3)
	require.Equal(t, 3*40, sizeOf(&whole)-before)

	s := shelf{limit: sizeOf(&whole), known: make(map[removalID]verdict.Trigger)}
	presumed := whole
	presumed.Trigger, presumed.Reason = verdict.Presumed, ""
	s.add(&presumed, time.Now())
	s.add(&whole, time.Now())
	require.Equal(t, []*api.Forced{&whole}, s.entries)
	require.Equal(t, sizeOf(&whole), s.bytes)
	s.add(&presumed, time.Now())
	require.Equal(t, []*api.Forced{&whole}, s.entries, "what is known is not presumed")
	s.add(&api.Forced{Name: "more", Token: 2}, time.Now())
	require.NotContains(t, s.entries, &whole)
}

// The limits are of the memory that is used.
func TestLedgerKnowsTheMemoryOfAnEntry(t *testing.T) {
	l := newLedger(time.Hour, time.Now)
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	const n = 5_000
	before := heap()
	for i := range n {
		e := api.Forced{Name: fmt.Sprint("billing/", i), Token: int64(i + 1), UUID: fmt.Sprintf("%036d", i), Verdict: &verdict.Verdict{}}
		for f := range 9 {
			e.Fields = append(e.Fields, api.Field{Name: fmt.Sprint("field-", f), Value: strings.Repeat("x", 30)})
		}
		e.Fields[8].Value = strings.Repeat("x", 1_000) // as a backtrace
		l.add(&l.forced, e)
	}
	require.InEpsilon(t, heap()-before, l.forced.bytes, 0.2)
	runtime.KeepAlive(l)
}

// Holders that release late all the time displace no forced unlock.
func TestS7_LedgerBoundsWhatOthersRemoved(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	l.self(removal("forced"))
	const n = 60_000
	for i := range n {
		now = now.Add(time.Millisecond)
		l.other(&protocol.Lock{Name: fmt.Sprint(i)}, 1)
	}
	l.self(removal("last"))
	require.Len(t, l.Recent(n), 2)
	require.LessOrEqual(t, l.others.bytes, otherBytes)
	page := l.Page("", n)
	require.Equal(t, []string{"last", fmt.Sprint(n - 1)}, []string{page[0].Name, page[1].Name})
	require.Len(t, l.Page("forced", n), 1)
	now = now.Add(ledgerTime + time.Second)
	require.Empty(t, l.Page("", n))
	require.Zero(t, l.others.bytes)
}

func TestS7_LedgerMergesByTime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	l.other(&protocol.Lock{Name: "before"}, 1)
	l.self(removal("forced")) // at the same time
	now = now.Add(time.Second)
	l.other(&protocol.Lock{Name: "after"}, 1)
	for n, want := range [][]string{nil, {"after"}, {"after", "forced"}, {"after", "forced", "before"}} {
		var names []string
		for _, f := range l.Page("", n) {
			names = append(names, f.Name)
		}
		require.Equal(t, want, names)
	}
}

// Records come in the order of their keys, and those of the replica's own removals come back.
func TestS7_LedgerListsEachRemovalOnceInTheOrderOfTime(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	l := newLedger(time.Hour, func() time.Time { return now })
	own := l.self(removal("own"))
	own.By = api.Other
	l.add(&l.forced, own)
	for i, ago := range []time.Duration{3 * time.Hour, 2 * time.Minute, 25 * time.Hour, time.Minute} {
		l.add(&l.forced, api.Forced{Name: fmt.Sprint(i), Token: 1, At: now.Add(-ago), Trigger: verdict.Expiry})
	}
	l.other(&protocol.Lock{Name: "1", Token: 1}, 9)
	l.add(&l.others, api.Forced{Name: "unknown", Token: 2})
	var names []string
	for _, f := range l.Page("", 10) {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"own", "unknown", "3", "1", "0"}, names)
	require.Equal(t, api.Self, l.Page("own", 10)[0].By)
	require.Len(t, l.Recent(10), 3)
}

// A record that was there before the removal was forged. It does not hide what this replica removed.
func TestS7_AForgedRecordHidesNoRemoval(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	l := newLedger(time.Hour, func() time.Time { return now })
	removed := removal("own")
	forged := removed.record.Removed()
	forged.At, forged.Trigger, forged.By, forged.Who = now.Add(-2*time.Hour), verdict.Manual, api.Other, "mallory"
	l.add(&l.forced, forged)
	require.Empty(t, l.Recent(10), "too old for the metrics")
	l.self(removed)
	recent := l.Recent(10)
	require.Len(t, recent, 1)
	require.Equal(t, api.Self, recent[0].By)
	require.Len(t, l.Page("own", 10), 1)
}

func TestS7_LedgerKeepsForALongRetention(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(72*time.Hour, func() time.Time { return now })
	l.self(removal("a"))
	now = now.Add(71 * time.Hour)
	require.Len(t, l.Recent(10), 1)
	now = now.Add(2 * time.Hour)
	require.Empty(t, l.Recent(10))
}

func TestLedgerFindsByName(t *testing.T) {
	l := newLedger(time.Hour, time.Now)
	long := strings.Repeat("n", 2*protocol.MaxName)
	for _, name := range []string{"a", "a/b", long, "a", "a\xff", "A"} {
		l.self(removal(name))
	}
	for name, want := range map[string]int{"": 6, "a": 2, "a/b": 1, "b": 0, long: 1, protocol.Clip([]byte(long), protocol.MaxName): 1, "a\xfe": 1} {
		require.Len(t, l.Page(name, 100), want, "%.20q", name)
	}
	require.Len(t, l.Page("a", 1), 1)
}

func sizes(entries []api.Forced) (sum int) {
	for i := range entries {
		sum += sizeOf(&entries[i])
	}
	return sum
}

// Whatever wrote the lock concurrently, the first further attempt is at once, and only those after it back off.
func TestS6_AfterAConflictTheBackoffBeginsLater(t *testing.T) {
	var a attempt
	require.Zero(t, atOnce(&a))
	for range 3 {
		tries := a.due.Attempts
		require.Less(t, atOnce(&a), minBackoff<<(tries-1)*3/2)
		require.Equal(t, tries+1, a.due.Attempts)
	}
}

// A sleep ends by the clock, whatever the precision of the runtime's timers: the least of some is that of an idle machine.
func TestS6_SleepIsPrecise(t *testing.T) {
	late := time.Hour
	for range 20 {
		const d = 3 * time.Millisecond
		start := time.Now()
		sleep(t.Context(), d)
		slept := time.Since(start)
		require.GreaterOrEqual(t, slept, d-time.Millisecond)
		late = min(late, slept-d)
	}
	require.Less(t, late, time.Millisecond)
}

func TestBackoffGrowsAndIsBounded(t *testing.T) {
	for tries, limit := range map[int]time.Duration{0: 150 * time.Millisecond, 1: 150 * time.Millisecond, 3: 600 * time.Millisecond, 1_000: 7500 * time.Millisecond} {
		for range 100 {
			d := backoff(tries, maxBackoff)
			require.GreaterOrEqual(t, d, limit/3)
			require.Less(t, d, limit)
		}
	}
}
