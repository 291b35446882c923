package scan

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALagGrows(t *testing.T) {
	for name, c := range map[string]struct {
		looks [][2]int64 // newest, passed
		want  bool
	}{
		"current":                  {[][2]int64{{100, 100}, {200, 200}, {300, 300}, {400, 400}}, false},
		"behind by a notice":       {[][2]int64{{100, 99}, {200, 150}, {400, 310}, {800, 600}, {1600, 1200}}, false},
		"catches up":               {[][2]int64{{9000, 10}, {9100, 1000}, {9200, 3000}, {9300, 5000}}, false},
		"stays behind":             {[][2]int64{{9000, 10}, {9100, 110}, {9200, 210}, {9300, 310}}, false},
		"once more, then less":     {[][2]int64{{9000, 10}, {9900, 110}, {9950, 510}, {10950, 610}, {10960, 900}}, false},
		"passes what was newest":   {[][2]int64{{9000, 10}, {19900, 9000}, {40000, 19900}}, false},
		"by little":                {[][2]int64{{900, 10}, {1000, 20}, {1020, 30}, {1025, 31}}, false},
		"grows":                    {[][2]int64{{9000, 10}, {9900, 110}, {19900, 210}}, true},
		"grows, after it was well": {[][2]int64{{100, 100}, {9000, 110}, {19000, 210}, {29000, 310}}, true},
		"not known at first":       {[][2]int64{{0, 100}, {9000, 110}, {19000, 210}, {29000, 310}}, true},
	} {
		var l lag
		for i, look := range c.looks {
			require.Equal(t, c.want && i == len(c.looks)-1, l.grows(look[0], look[1]), "%s, %d", name, i)
		}
	}
}

// A watch that falls behind more and more is listed again; one that lags steadily is not.
func TestAWatchThatFallsBehindIsRelisted(t *testing.T) {
	for each, want := range map[int64]uint64{0: 0, 1000: 1} {
		var ahead atomic.Int64
		ahead.Store(5000)
		bubble(t, func(w *bubbled) {
			for range 16 {
				pass(seconds)
				ahead.Add(each)
			}
			require.Equal(w.t, want, w.Status().Restarts[ReasonLagging])
			require.Equal(w.t, w.cluster.Revision(), w.Status().Passed)
		}, func(o *Options) {
			o.Newest = func() int64 { return 1 + ahead.Load() }
		})
	}
}
