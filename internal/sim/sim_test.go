package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOne(t *testing.T) {
	h := history{Replicas: 2, Lasts: 150 * time.Second, Holders: []holder{
		{Name: "a", Start: 20 * time.Second, Interval: 5 * time.Second, TTL: 20 * time.Second, Retry: 20 * time.Second, LockedAt: true, AliveAt: true, Dies: 60 * time.Second},
		{Name: "a/b", Start: 22 * time.Second, Interval: 5 * time.Second, TTL: 20 * time.Second, Retry: 20 * time.Second, LockedAt: true, AliveAt: true},
	}}
	j := run(t, h, without{})
	require.Empty(t, j.violations)
	require.Equal(t, 1, j.removals)
}

func BenchmarkHistory(b *testing.B) {
}

func TestSpeed(t *testing.T) {
	start := time.Now()
	for range 100 {
		TestOne(t)
	}
	t.Log(time.Since(start) / 100)
}
