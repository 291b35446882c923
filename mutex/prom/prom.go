// Package prom counts the events of the locks of package mutex in metrics of Prometheus.
//
// The labels have no names of locks, of which there may be any number.
package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcd-unlocker/unlocker/mutex"
)

// Observer registers the metrics and returns the function for mutex.Observe that counts. It may serve several clients.
func Observer(reg prometheus.Registerer) (func(mutex.Event), error) {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "unlocker_mutex_events_total", Help: "Events of locks, by kind."}, []string{"event"})
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1})
	}
	seconds := prometheus.ExponentialBuckets(.001, 4, 12)
	wait := histogram("unlocker_mutex_wait_duration_seconds", "How long calls waited for the locks that they took.", seconds)
	hold := histogram("unlocker_mutex_hold_duration_seconds", "How long locks were held that were released or lost.", seconds)
	margin := histogram("unlocker_mutex_renewal_margin_ratio", "Share of the patience that was left at renewals.", prometheus.LinearBuckets(.1, .1, 9))
	for _, c := range []prometheus.Collector{events, wait, hold, margin} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	for _, kind := range []mutex.EventKind{mutex.EventWaiting, mutex.EventTaken, mutex.EventRenewed, mutex.EventLate, mutex.EventLost, mutex.EventReleased, mutex.EventAsked} {
		events.WithLabelValues(string(kind))
	}
	return func(e mutex.Event) {
		events.WithLabelValues(string(e.Kind)).Inc()
		switch e.Kind {
		case mutex.EventTaken:
			wait.Observe(e.Took.Seconds())
		case mutex.EventLost, mutex.EventReleased:
			hold.Observe(e.Took.Seconds())
		case mutex.EventRenewed:
			margin.Observe(e.Margin)
		}
	}, nil
}
