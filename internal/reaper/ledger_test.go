package reaper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
)

// removal is an attempt that needs no etcd.
func removal(name string) *attempt {
	return &attempt{record: lockstore.Record{Lock: lock.Lock{Name: name}}}
}

func TestS7_LedgerKeepsForTheRetention(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	for i := range 120 {
		l.add(removal(fmt.Sprint(i)))
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
	require.Zero(t, l.bytes)
	require.Empty(t, l.entries)

	l.add(removal("old"))
	now = now.Add(-30 * time.Minute)
	l.add(removal("after a step back"))
	recent = l.Recent(2)
	require.Equal(t, "after a step back", recent[0].Name)
	require.Equal(t, recent[1].At, recent[0].At)
	now = now.Add(2 * time.Hour)
	l.add(removal("new"))
	require.Len(t, l.entries, 1, "also if nobody reads")
}

func TestS7_LedgerIsBoundedByBytes(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLedger(time.Hour, func() time.Time { return now })
	const n = 60_000
	long := strings.Repeat("n", lockstore.MaxName-10)
	for i := range n {
		l.add(removal(fmt.Sprint(long, i)))
	}
	recent := l.Recent(n)
	require.Less(t, len(recent), n)
	require.Greater(t, len(recent), n/2)
	require.Equal(t, fmt.Sprint(long, n-1), recent[0].Name)
	require.Equal(t, sizes(recent), l.bytes)
	require.LessOrEqual(t, l.bytes, ledgerBytes)
	page := l.Page("", n)
	require.LessOrEqual(t, sizes(page), shownLedgerBytes+page[0].size(), "what people are shown at once is less")
	require.Greater(t, sizes(page), shownLedgerBytes/2)
	require.Equal(t, recent[0].Name, page[0].Name)
}

func TestLedgerFindsByName(t *testing.T) {
	l := newLedger(time.Hour, time.Now)
	long := strings.Repeat("n", 2*lockstore.MaxName)
	for _, name := range []string{"a", "a/b", long, "a", "a\xff", "A"} {
		l.add(removal(name))
	}
	for name, want := range map[string]int{"": 6, "a": 2, "a/b": 1, "b": 0, long: 1, lock.Clip([]byte(long), lockstore.MaxName): 1, "a\xfe": 1} {
		require.Len(t, l.Page(name, 100), want, "%.20q", name)
	}
	require.Len(t, l.Page("a", 1), 1)
}

func sizes(entries []Removal) (sum int) {
	for i := range entries {
		sum += entries[i].size()
	}
	return sum
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
