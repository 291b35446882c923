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

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/collectors/version"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Snapshot is the state that one scrape exports. It is read-only.
type Snapshot struct {
	Table  table.Stats
	Scan   scan.Status
	Reaper reaper.Stats
	// Forced are the recent forced unlocks, newest first.
	Forced []api.Forced
	// Holds are those in force.
	Holds []api.Hold
	// Pauses are those in force, of all locks or of some. One that cannot be read has no end.
	Pauses []api.Pause
	Probe  probe.Status
	// Leader reports whether this replica removes first.
	Leader bool
	// Native are the native prefixes that could be listed.
	Native []native.Listing
	// Waiters are the tickets of those who wait for locks.
	Waiters waiters.Stats
	// Certificates are those of the etcd client.
	Certificates []api.Certificate
}

// Source provides snapshots.
type Source interface {
	// Snapshot returns soon, at the latest when ctx is done, and sends nothing to etcd.
	// Concurrent scrapes call it concurrently.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// snapshotTimeout leaves room within Prometheus's default scrape timeout of 10 s.
const snapshotTimeout = 5 * time.Second

// Collector is a prometheus.Collector that reads one snapshot per scrape. Its
// methods may be called concurrently.
type Collector struct {
	source        Source
	maxLockSeries int
	families      []family
}

// New returns a Collector of what a source has. maxLockSeries is the maximum number of locks with series of their own, and the
// same for forced unlocks; 0 means none.
func New(source Source, maxLockSeries int) *Collector {
	return &Collector{source, maxLockSeries, families()}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range c.families {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector. Without a snapshot it sends one invalid
// metric, which fails the scrape.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	// prometheus.Collector has no context of the scrape.
	ctx, cancel := context.WithTimeout(context.Background(), snapshotTimeout)
	defer cancel()
	s, err := c.source.Snapshot(ctx)
	if err != nil {
		err = fmt.Errorf("taking a snapshot for the scrape, timeout %s: %w", snapshotTimeout, err)
		ch <- prometheus.NewInvalidMetric(c.families[0].desc, err)
		return
	}
	v := newView(s, c.maxLockSeries)
	for _, f := range c.families {
		sent := make(map[string]bool)
		f.collect(v, func(value float64, labels ...string) {
			key := fmt.Sprintf("%q", labels)
			if sent[key] {
				return
			}
			sent[key] = true
			m, err := prometheus.NewConstMetric(f.desc, f.kind, value, labels...)
			if err != nil {
				m = prometheus.NewInvalidMetric(f.desc, err)
			}
			ch <- m
		})
	}
}

// Register registers all metrics, with go_*, process_* and unlocker_build_info. Use each Collector and each
// Histograms with one registry.
func Register(reg prometheus.Registerer, c *Collector, h *Histograms) error {
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		version.NewCollector("unlocker"),
		c, h.ForcedUnlockDelay, h.LockHoldDuration, h.LockWaitDuration, h.RenewalMargin,
	} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering a metrics collector: %w", err)
		}
	}
	return nil
}

// Label values are truncated to these numbers of bytes, and an ellipsis is appended. The ledger and
// the table use the same numbers, so that a lock has the same label in every series.
const (
	maxName = protocol.MaxName
	maxHost = 253
)

// view is a snapshot with its per-lock series selected and labeled.
type view struct {
	Snapshot
	overdue []table.View
	forced  []api.Forced
}

func newView(s Snapshot, maximum int) *view {
	return &view{
		Snapshot: s,
		// By name alone, not by all labels of unlocker_lock_info: queries join other series
		// with it, which requires one series for each lock.
		overdue: distinct(s.Table.Overdue, maximum, func(l *table.View) string {
			l.Name = label(l.Name, maxName)
			return l.Name
		}),
		forced: distinct(s.Forced, maximum, func(r *api.Forced) [4]string {
			r.Name, r.Hostname, r.Owner = label(r.Name, maxName), label(r.Hostname, maxHost), label(r.Owner, maxHost)
			return [...]string{r.Name, r.Hostname, r.Owner, string(r.Trigger)}
		}),
	}
}

// distinct returns the first value for each set of labels, up to a maximum. The function makes the labels.
func distinct[T any, K comparable](all []T, maximum int, labels func(*T) K) (kept []T) {
	seen := make(map[K]bool, min(maximum, len(all)))
	for _, v := range all {
		if len(kept) >= maximum {
			break
		}
		if key := labels(&v); !seen[key] {
			seen[key] = true
			kept = append(kept, v)
		}
	}
	return kept
}

// label returns a valid label value for untrusted text. It is idempotent.
func label(s string, maximum int) string {
	// A name may have a megabyte; Clip needs no more than this.
	return protocol.Clip([]byte(s[:min(len(s), 2*maximum)]), maximum)
}
