package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Native histograms have eight buckets for each doubling. Up to maxBuckets of
// them, that is over twenty doublings, nothing is lost; a histogram spread wider
// starts afresh, at most once per resetInterval, and is coarser meanwhile.
const (
	growth        = 1.1
	maxBuckets    = 160
	resetInterval = time.Hour
)

// Histograms are the distributions, each both classic and native. They are
// observed in seconds, by those who see what is measured, concurrently.
type Histograms struct {
	// ForcedUnlockDelay is from a lock's being due until it was seen gone.
	ForcedUnlockDelay prometheus.Histogram
	// LockHoldDuration is from a lock's acquisition to its release.
	LockHoldDuration prometheus.Histogram
}

// NewHistograms returns histograms that are registered nowhere yet; Histograms
// is a prometheus.Collector itself.
func NewHistograms() *Histograms {
	return &Histograms{
		ForcedUnlockDelay: histogram("unlocker_forced_unlock_delay_seconds",
			"From when a lock was due for removal until it was seen gone.", delayBuckets()),
		LockHoldDuration: histogram("unlocker_lock_hold_duration_seconds",
			"How long locks were held that were seen released.", holdBuckets()),
	}
}

// delayBuckets has even steps up to a second, where one transaction lies, and
// then an edge just above each wait that is by design: the standby's delay of
// 5 s, settling for 15 s, a storm's hold of 2 min.
func delayBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 7.5, 10, 20, 60, 150, 300}
}

// holdBuckets has the limits that people set: seconds, minutes, hours, a shift,
// a day.
func holdBuckets() []float64 {
	return []float64{.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 8 * 3600, 24 * 3600}
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:                        name,
		Help:                        help,
		Buckets:                     buckets,
		NativeHistogramBucketFactor: growth,
		// What the first classic bucket does not tell apart needs no native
		// buckets either.
		NativeHistogramZeroThreshold:    buckets[0],
		NativeHistogramMaxBucketNumber:  maxBuckets,
		NativeHistogramMinResetDuration: resetInterval,
	})
}

// Describe implements prometheus.Collector.
func (h *Histograms) Describe(ch chan<- *prometheus.Desc) {
	h.ForcedUnlockDelay.Describe(ch)
	h.LockHoldDuration.Describe(ch)
}

// Collect implements prometheus.Collector.
func (h *Histograms) Collect(ch chan<- prometheus.Metric) {
	h.ForcedUnlockDelay.Collect(ch)
	h.LockHoldDuration.Collect(ch)
}
