package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

func written(t *testing.T, h prometheus.Metric) *dto.Histogram {
	t.Helper()
	var m dto.Metric
	require.NoError(t, h.Write(&m))
	return m.GetHistogram()
}

func bounds(h *dto.Histogram) (upper []float64) {
	for _, b := range h.GetBucket() {
		upper = append(upper, b.GetUpperBound())
	}
	return upper
}

func TestHistogramsAreClassicAndNative(t *testing.T) {
	h := NewHistograms()
	for _, tc := range []struct {
		histogram   prometheus.Histogram
		first, last time.Duration
	}{
		{h.ForcedUnlockDelay, time.Millisecond, 5 * time.Minute},
		{h.LockHoldDuration, 100 * time.Millisecond, 24 * time.Hour},
		{h.RenewalMargin, 10 * time.Millisecond, time.Second},
	} {
		tc.histogram.Observe(0)
		tc.histogram.Observe(.3)
		got := written(t, tc.histogram)
		upper := bounds(got)
		require.IsIncreasing(t, upper)
		require.InDelta(t, tc.first.Seconds(), upper[0], 0)
		require.InDelta(t, tc.last.Seconds(), upper[len(upper)-1], 0)
		require.EqualValues(t, 3, got.GetSchema(), "a factor of at most 1.1")
		require.EqualValues(t, 1, got.GetZeroCount())
		require.Len(t, got.GetPositiveSpan(), 1)
		require.EqualValues(t, 2, got.GetSampleCount())
	}
}

// The native buckets cover the range of the classic ones at full resolution.
func TestNativeBucketsAreBounded(t *testing.T) {
	h := NewHistograms()
	for _, tc := range []struct {
		histogram prometheus.Histogram
		last      float64
	}{{h.ForcedUnlockDelay, 300}, {h.LockHoldDuration, 86400}, {h.RenewalMargin, 1}} {
		for v := .00001; v <= tc.last; v *= 1.05 {
			tc.histogram.Observe(v)
		}
		got := written(t, tc.histogram)
		require.EqualValues(t, 3, got.GetSchema())
		require.LessOrEqual(t, len(got.GetPositiveDelta()), maxBuckets)
		for v := tc.last; v <= 1e15; v *= 1.05 {
			tc.histogram.Observe(v)
		}
		got = written(t, tc.histogram)
		require.LessOrEqual(t, len(got.GetPositiveDelta()), maxBuckets)
	}
}

func TestExpositionOfHistogram(t *testing.T) {
	reg, h := newRegistry(t, always{}, 1)
	require.Contains(t, exposition(t, reg, "unlocker_forced_unlock_delay_seconds"), "unlocker_forced_unlock_delay_seconds_count 0")
	h.LockHoldDuration.Observe(1000)
	require.Equal(t, unindent(`
		unlocker_lock_hold_duration_seconds_bucket{le="0.1"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="0.5"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="1"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="5"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="15"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="60"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="300"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="900"} 0
		unlocker_lock_hold_duration_seconds_bucket{le="3600"} 1
		unlocker_lock_hold_duration_seconds_bucket{le="14400"} 1
		unlocker_lock_hold_duration_seconds_bucket{le="28800"} 1
		unlocker_lock_hold_duration_seconds_bucket{le="86400"} 1
		unlocker_lock_hold_duration_seconds_bucket{le="+Inf"} 1
		unlocker_lock_hold_duration_seconds_sum 1000
		unlocker_lock_hold_duration_seconds_count 1`), exposition(t, reg, "unlocker_lock_hold_duration_seconds"))
}

func TestRegistryRefusesDuplicates(t *testing.T) {
	c := New(always{}, 0)
	for range 2 { // registries share nothing
		reg := prometheus.NewRegistry()
		require.NoError(t, Register(reg, c, NewHistograms()))
		require.ErrorContains(t, Register(reg, c, NewHistograms()), "registering a metrics collector: ")
	}
}
