// Package metrics shows Prometheus what this replica sees and does.
//
// It reads one snapshot for each scrape and keeps none: what a scrape tells
// belongs to one instant, and nothing is counted here that is counted elsewhere.
// Only the histograms live here, since they cannot be read from a snapshot.
//
// It guarantees that no lock's name, host or owner can break a scrape or make
// it grow without bound: label values are valid UTF-8 and clipped, values that
// are equal afterwards share one series, and locks with series of their own are
// capped. It does not guarantee that a label tells two locks apart, nor that a
// lock has series at all: unlocker_lock_series_omitted says how many have none.
//
// A scrape without a snapshot fails as a whole. To leave out what is not known
// would resolve the very alerts that it should raise; a failed scrape makes
// `up` 0, which everybody alerts on already. The handler must therefore keep
// promhttp.HTTPErrorOnError, which is its default. That etcd is away is no
// reason to fail: a snapshot is of what is in memory.
//
// The metrics are described in docs/metrics.md, which a test holds to the code.
package metrics
