// Package metrics exports to Prometheus what this replica observes and does.
//
// Each scrape reads one snapshot and keeps none, so all values of a scrape are from one
// instant. Nothing is counted here that is counted elsewhere. Only the histograms are
// kept here, because they cannot be computed from a snapshot.
//
// The package guarantees that no lock name, host or owner can break a scrape or make it
// grow without bound. Label values are valid UTF-8 and truncated. Values that are equal
// after that share one series. The number of locks with series of their own is limited.
// The package does not guarantee that labels distinguish two locks, nor that a lock has
// series at all: unlocker_lock_series_omitted is the number of locks without.
//
// A scrape without a snapshot fails as a whole. Leaving out unknown values would resolve
// the very alerts that should fire; a failed scrape sets `up` to 0, which users alert on
// already. The handler must therefore keep promhttp.HTTPErrorOnError, its default. An
// unreachable etcd does not fail a scrape: a snapshot is of what is in memory.
//
// docs/metrics.md describes the metrics; a test compares it with the code.
package metrics
