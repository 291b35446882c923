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

	"github.com/etcd-unlocker/unlocker/internal/api"
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
		c := collector{listing: Listing{NativePrefix: api.NativePrefix{Prefix: "/n/"}}, limits: Limits{Locks: 1000, Waiters: 1000}, seen: func(string, api.NativeKey, time.Time) time.Time { return time.Time{} }}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			c.add(key, keys[key])
		}
		got := c.done()
		require.Empty(t, c.open)
		require.Equal(t, len(keys), got.Held+got.Waiting+got.Other)
		require.Zero(t, got.MoreHolders)
		require.True(t, slices.IsSortedFunc(got.Holders, func(a, b api.NativeHolder) int { return byAge(a.NativeKey, b.NativeKey) }))
		require.Equal(t, naive(keys), described(got.Holders))
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
		var all, own []api.NativeKey
		for k, created := range keys {
			if strings.HasPrefix(k, name+"/") {
				all = append(all, api.NativeKey{Key: k, Revision: created})
				if leaseOf(k) != 0 && !strings.Contains(k[len(name)+1:], "/") {
					own = append(own, api.NativeKey{Key: k, Revision: created})
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

func described(locks []api.NativeHolder) map[string]string {
	got := map[string]string{}
	for _, l := range locks {
		got[l.Name] = fmt.Sprint(append([]api.NativeKey{l.NativeKey}, l.Waiters...))
	}
	return got
}
