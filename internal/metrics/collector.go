package metrics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
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
	// Pauses is the number of pauses in force, of all locks or of some.
	Pauses int
	Probe  probe.Status
	// Leader reports whether this replica removes first.
	Leader bool
	// Native are the native prefixes that could be listed.
	Native []native.Status
	// Certificates are the expiry times of the etcd client's certificates, by label; zero
	// if a file cannot be read.
	Certificates map[string]time.Time
}

// Source provides snapshots.
type Source interface {
	// Snapshot returns soon, at the latest when ctx is done, and sends nothing to etcd.
	// Concurrent scrapes call it concurrently.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// DefaultTimeout leaves room within Prometheus's default scrape timeout of 10 s.
const DefaultTimeout = 5 * time.Second

// Options are what a Collector needs.
type Options struct {
	Source Source
	// MaxLockSeries is the maximum number of locks with series of their own, and the
	// same for forced unlocks; 0 means none.
	MaxLockSeries int
	// Timeout bounds the wait for a snapshot; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Collector is a prometheus.Collector that reads one snapshot per scrape. Its
// methods may be called concurrently.
type Collector struct {
	Options
	families []family
}

// New validates the options and returns a Collector. Register it with one registry, once.
func New(o Options) (*Collector, error) {
	switch {
	case o.Source == nil:
		return nil, errors.New("metrics: Source is required")
	case o.MaxLockSeries < 0, o.Timeout < 0:
		return nil, fmt.Errorf("metrics: max lock series %d or timeout %s out of range", o.MaxLockSeries, o.Timeout)
	case o.Timeout == 0:
		o.Timeout = DefaultTimeout
	}
	return &Collector{Options: o, families: families()}, nil
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
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	s, err := c.Source.Snapshot(ctx)
	if err != nil {
		err = fmt.Errorf("taking a snapshot for the scrape, timeout %s: %w", c.Timeout, err)
		ch <- prometheus.NewInvalidMetric(c.families[0].desc, err)
		return
	}
	v := newView(s, c.MaxLockSeries)
	for _, f := range c.families {
		f.collect(v, func(value float64, labels ...string) {
			m, err := prometheus.NewConstMetric(f.desc, f.kind, value, labels...)
			if err != nil {
				m = prometheus.NewInvalidMetric(f.desc, err)
			}
			ch <- m
		})
	}
}
