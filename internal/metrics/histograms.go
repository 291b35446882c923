package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A native histogram has eight buckets for each doubling. Up to maxBuckets, which
// is over twenty doublings, it keeps full resolution. A wider histogram is reset, at most
// once per resetInterval, and has a lower resolution until then.
const (
	growth        = 1.1
	maxBuckets    = 160
	resetInterval = time.Hour
)

// Histograms are the distributions, each both classic and native. Their Observe methods may be
// called concurrently.
type Histograms struct {
	// ForcedUnlockDelay is the time from when a lock is due until its deletion is observed.
	ForcedUnlockDelay prometheus.Histogram
	// LockHoldDuration is the time from a lock's acquisition to its release.
	LockHoldDuration prometheus.Histogram
	// RenewalMargin is the share of the patience that was left at each renewal.
	RenewalMargin prometheus.Histogram
}

// NewHistograms returns histograms that are not registered.
func NewHistograms() *Histograms {
	return &Histograms{
		ForcedUnlockDelay: histogram("unlocker_forced_unlock_delay_seconds",
			"Time from when a lock was due until its deletion was observed.",
			// Even steps up to a second, the range of one transaction, and then a bound just
			// above each intended wait: standby_delay (5 s) and settle (15 s).
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 7.5, 10, 20, 60, 150, 300),
		LockHoldDuration: histogram("unlocker_lock_hold_duration_seconds",
			"How long released locks had been held.",
			// The deadlines that people choose: seconds, minutes, hours, a shift, a day.
			.1, .5, 1, 5, 15, 60, 300, 900, 3600, 4*3600, 8*3600, 24*3600),
		RenewalMargin: histogram("unlocker_renewal_margin_ratio",
			"Share of the patience that was left at each renewal; 0 at or past the deadline.",
			// The bound of a near miss, a tenth, and even steps around what clients leave that
			// renew in time.
			.01, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1),
	}
}

func histogram(name, help string, buckets ...float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:                        name,
		Help:                        help,
		Buckets:                     buckets,
		NativeHistogramBucketFactor: growth,
		// Values below the first classic bound need no native buckets either.
		NativeHistogramZeroThreshold:    buckets[0],
		NativeHistogramMaxBucketNumber:  maxBuckets,
		NativeHistogramMinResetDuration: resetInterval,
	})
}
