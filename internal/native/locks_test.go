package native

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLocksOfAllMixturesOfKeys compares with what concurrency.Mutex does: it reads the oldest key
// below its name and a slash.
func TestLocksOfAllMixturesOfKeys(t *testing.T) {
	t.Parallel()
	segment := rapid.SampledFrom([]string{"", "a", "b", "x", "a-", "10", "zz"})
	rapid.Check(t, func(t *rapid.T) {
		keys := map[string]int64{}
		for rev := range rapid.IntRange(0, 30).Draw(t, "keys") {
			key := "/n/" + strings.Join(rapid.SliceOfN(segment, 1, 4).Draw(t, "segments"), "/")
			keys[key] = int64(rev + 1)
		}
		c := collector{prefix: "/n/", limits: Limits{Locks: 1000, Waiters: 1000}, seen: func(string, Key, time.Time) time.Time { return time.Time{} }}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			c.add(key, keys[key])
		}
		got := c.done()
		require.Empty(t, c.open)
		require.Equal(t, len(keys), got.Held+got.Waiting+got.Other)
		require.Len(t, got.Locks, got.Total)
		require.True(t, slices.IsSortedFunc(got.Locks, func(a, b Lock) int { return byAge(a.Keys[0], b.Keys[0]) }))
		require.Equal(t, naive(keys), described(got.Locks))
	})
}

// naive maps the name of each lock to its holder and those that wait.
func naive(keys map[string]int64) map[string]string {
	want := map[string]string{}
	for key := range keys {
		if leaseOf(key) == 0 {
			continue
		}
		name := key[:strings.LastIndexByte(key, '/')]
		var all, own []Key
		for k, created := range keys {
			if strings.HasPrefix(k, name+"/") {
				all = append(all, Key{k, created})
				if leaseOf(k) != 0 && !strings.Contains(k[len(name)+1:], "/") {
					own = append(own, Key{k, created})
				}
			}
		}
		slices.SortFunc(all, byAge)
		slices.SortFunc(own, byAge)
		if own[0] != all[0] {
			own = slices.Insert(own, 0, all[0])
		}
		want[name] = fmt.Sprint(own)
	}
	return want
}

func described(locks []Lock) map[string]string {
	got := map[string]string{}
	for _, l := range locks {
		got[l.Name] = fmt.Sprint(l.Keys)
	}
	return got
}
