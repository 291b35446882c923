package verdict_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

func TestS3_StormIsAFractionOfAllLocksAndAMinimum(t *testing.T) {
	for name, c := range map[string]struct {
		min         int
		came, dated int
		want        bool
	}{
		"all":                {20, 20, 20, true},
		"too few":            {20, 19, 19, false},
		"a tenth":            {20, 100, 1_000, true},
		"less than a tenth":  {20, 99, 1_000, false},
		"the minimum counts": {20, 20, 201, false},
		"removed already":    {20, 20, 0, true},
		"off":                {0, 10_000, 10_000, false},
		"nothing, off":       {0, 0, 0, false},
		"one":                {1, 1, 1, true},
		"none came":          {1, 0, 0, false},
	} {
		r := verdict.Rules{Reaper: config.Reaper{Storm: config.Storm{MinLocks: c.min, Fraction: 0.1}}}
		require.Equal(t, c.want, r.Storms(c.came, c.dated), name)
	}
}
