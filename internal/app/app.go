// Package app assembles the daemon: it makes all parts from the configuration, starts them
// in order, and stops them in reverse order.
//
// New binds the listeners and fails on every error that a retry cannot fix, such as an
// invalid file or a port in use. It does not need etcd: a daemon that starts before etcd is
// live but not ready, and becomes ready by itself. Stop returns when all goroutines have
// ended, including transactions in flight.
//
// Not guaranteed: that Stop waits longer than its context. What has not ended by then is
// reported as an error.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/elect"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/metrics"
	"github.com/etcd-unlocker/unlocker/internal/native"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/internal/waiters"
	"github.com/etcd-unlocker/unlocker/internal/web/live"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// App is the daemon.
type App struct {
	config     config.Config
	layout     protocol.Layout
	rules      verdict.Rules
	logger     *slog.Logger
	client     *etcd.Client
	table      *table.Table
	scanner    *scan.Scanner
	reaper     *reaper.Reaper
	probe      *probe.Probe
	records    *etcd.Follower
	pauses     *pause.Pauses
	native     *native.Observer
	waiters    *waiters.Waiters
	elector    *elect.Elector // nil if the election is disabled
	registry   *prometheus.Registry
	histograms *metrics.Histograms
	ops        *server
	web        *server // nil if the web listener is disabled
	events     *live.Hub
	host       string // its name
	identity   string
	started    time.Time

	// Stop runs the cleanups in reverse order.
	cleanups []func(context.Context) error
	// failed receives the error of a part that failed.
	failed chan error
}

// New makes the daemon and binds its listeners. On an error it closes what it opened.
func New(c config.Config, logger *slog.Logger) (_ *App, err error) {
	a := &App{
		config: c, rules: verdict.RulesFromConfig(c), logger: logger, histograms: metrics.NewHistograms(),
		started: time.Now(), failed: make(chan error, 8),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Stop(context.Background()))
		}
	}()
	if a.layout, err = protocol.NewLayout(c.Prefix); err != nil {
		return nil, err
	}
	for _, part := range []func() error{
		a.newRegistry, a.newClient, a.newPauses, a.newWaiters, a.newScan, a.newElector, a.newReaper, a.newRecords, a.newNative, a.newListeners,
	} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *App) newListeners() (err error) {
	c := a.config
	a.ops, err = newServer("ops", c.Ops.Listen, c.Ops.WebConfigFile, maxOpsConns, newOpsHandler(a.registry, a.missing, c.Ops.PProf, a.logger), a.logger)
	if err != nil {
		return err
	}
	a.onStop("ops listener", a.ops.close)
	if c.Web.Listen == "" {
		return nil
	}
	if err := records.CheckUsers(c.Web); err != nil {
		return err
	}
	handler, err := a.newWebHandler()
	if err != nil {
		return err
	}
	a.web, err = newServer("web", c.Web.Listen, c.Web.WebConfigFile, maxWebConns, handler, a.logger)
	if err != nil {
		return err
	}
	a.onStop("web listener", a.web.close)
	return nil
}

func (a *App) newRegistry() error {
	a.registry = prometheus.NewRegistry()
	return metrics.Register(a.registry, metrics.New(a, a.config.Metrics.MaxLockSeries), a.histograms)
}

func (a *App) newClient() error {
	client, err := etcd.New(etcd.Options{
		Etcd: a.config.Etcd, HangAfter: 2 * a.config.Reaper.ProbeInterval, Logger: a.logger, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.client = client
	a.onStop("etcd client", func(context.Context) error { return client.Close() })
	return nil
}

// follow returns how to follow a small prefix of which the daemon reads the keys.
func (a *App) follow(prefix string) etcd.FollowerOptions {
	return etcd.FollowerOptions{
		Client:         a.client.Client,
		Prefix:         prefix,
		RequestTimeout: a.config.Etcd.RequestTimeout,
		Freshness:      a.config.Reaper.Freshness,
		Explain:        func(err error) error { return a.client.Explain(err, etcd.Read, prefix) },
		Logger:         a.logger,
	}
}

func (a *App) newPauses() (err error) {
	a.pauses, err = pause.New(pause.Options{
		FollowerOptions: a.follow(a.config.PauseKeys()),
		// The error is only that the table has stopped.
		Changed: func(ctx context.Context) { _ = a.table.Resume(ctx) },
	})
	return err
}

func (a *App) newWaiters() (err error) {
	a.waiters, err = waiters.New(waiters.Options{
		FollowerOptions: a.follow(a.config.WaitersKeys()),
		Changed:         func() { a.table.Notify() },
		WaitDuration:    a.histograms.LockWaitDuration,
		Layout:          a.layout,
		Holder: func(ctx context.Context, lock string) (uuid string, due time.Time) {
			it, seen, _ := a.table.Get(ctx, lock) // the error is only that the table has stopped
			if v := a.reaper.Verdict(it); seen && v.Action != verdict.Leave {
				due = v.Due.UTC()
			}
			return it.UUID(), due
		},
	})
	return err
}

func (a *App) newScan() (err error) {
	a.probe, err = probe.New(probe.Options{
		Etcd:     a.client,
		Members:  len(a.config.Etcd.Endpoints),
		Explain:  a.explainLocks,
		Interval: a.config.Reaper.ProbeInterval,
		Timeout:  a.config.Etcd.RequestTimeout,
		Patience: a.rules.MinGrace(),
		// The error is only that the table has stopped.
		Ended: func(ctx context.Context) { _ = a.table.Reschedule(ctx) },
	})
	if err != nil {
		return err
	}
	a.table, err = table.New(table.Options{
		Rules:         a.rules,
		Allowance:     a.probe.Allowance,
		Raw:           table.Raw(),
		Paused:        func(name string) bool { return a.pauses.Matches(name) || a.reaper.Braked(name) },
		Released:      func(name string, token int64) { a.reaper.Released(name, token) },
		Acquired:      a.waiters.Acquired,
		Lead:          a.probe.Lead,
		HoldDuration:  a.histograms.LockHoldDuration,
		RenewalMargin: a.histograms.RenewalMargin,
		Logger:        a.logger,
	})
	if err != nil {
		return err
	}
	a.scanner, err = scan.New(scan.Options{
		Client:         a.client.Client,
		Layout:         a.layout,
		Table:          a.table,
		Freshness:      a.config.Reaper.Freshness,
		Tolerance:      a.config.Reaper.ClockTolerance,
		Resync:         a.config.ResyncInterval,
		RequestTimeout: a.config.Etcd.RequestTimeout,
		Explain:        a.explainLocks,
		Newest:         func() int64 { return a.probe.Status().Revision },
		Restored:       func() { a.probe.Forget(); a.reaper.Restored() },
		Logger:         a.logger,
	})
	return err
}

// explainLocks adds what to change to an error of etcd about the locks.
func (a *App) explainLocks(err error) error {
	return a.client.Explain(err, etcd.LockPermission(a.config), a.config.Prefix)
}

func (a *App) newStore() lockstore.Store {
	return lockstore.Store{KV: a.client.KV, Layout: a.layout, Pauses: a.config.PauseKeys(), RequestTimeout: a.config.Etcd.RequestTimeout, Explain: a.explainLocks}
}

func (a *App) newReaper() (err error) {
	a.reaper, err = reaper.New(reaper.Options{
		Store:  a.newStore(),
		Source: a.table,
		Rules:  a.rules,
		Signals: func() verdict.Signals {
			return Signals(a.scanner, a.probe, a.pauses, a.records.Status().Synced || !a.rules.Brakes())
		},
		Leader: a.leads,
		Pauses: a.pauses,
		Probe:  a.probe,
		Records: &records.Writer{
			Config: a.config, Client: a.client, Full: func() bool { return a.records.Status().Omitted > 0 },
		},
		Replica:   a.identity,
		Retention: a.config.Metrics.ForcedUnlockRetention,
		Delay:     a.histograms.ForcedUnlockDelay,
		Logger:    a.logger,
	})
	return err
}

// OpsAddr returns the address of the ops listener.
func (a *App) OpsAddr() string { return a.ops.addr() }

// WebAddr returns the address of the web listener, or "" if it is disabled.
func (a *App) WebAddr() string { return a.web.addr() }

// Start starts all parts, each after those that it depends on.
func (a *App) Start() {
	a.start("ops server", a.ops.run)
	a.start("lock table", a.table.Run)
	a.start("scanner", a.scanner.Run)
	a.start("probe", a.probe.Run)
	a.start("pauses", a.pauses.Run)
	a.start("waiters", a.waiters.Run)
	a.start("deadlocks", a.waiters.RunDeadlocks)
	a.start("versions of etcd", a.client.LogStaleReads)
	if len(a.config.NativePrefixes) > 0 {
		a.start("native prefixes", a.native.Run)
	}
	if a.elector != nil {
		a.start("elector", a.elector.Run)
	}
	if a.web != nil {
		a.start("web server", a.web.run)
		a.start("event streams", a.events.Run) // stopped first, since the server waits for them
	}
	// The reaper is started last and stopped first, while this replica still leads and the
	// watch still updates the table.
	a.start("waiting locks", a.logWaiting)
	a.start("records of removals", a.records.Run)
	a.start("reaper", a.reaper.Run)
	a.logger.Info(api.LogStarted, "prefix", a.config.Prefix, "mode", a.config.Reaper.Mode,
		"endpoints", a.config.Etcd.Endpoints, "ops", a.OpsAddr(), "web", a.WebAddr())
}

// start runs a part until Stop.
func (a *App) start(name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			a.failed <- fmt.Errorf("%s: %w", name, err)
		}
	}()
	a.onStop(name, func(ctx context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (a *App) onStop(name string, run func(context.Context) error) {
	a.cleanups = append(a.cleanups, func(ctx context.Context) error {
		if err := run(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		return nil
	})
}

// Stop stops all parts in reverse order, and returns when they have ended or ctx is done.
func (a *App) Stop(ctx context.Context) error {
	var errs []error
	for _, stop := range slices.Backward(a.cleanups) {
		errs = append(errs, stop(ctx))
	}
	a.cleanups = nil
	return errors.Join(errs...)
}

// stopTimeout limits Stop, since the daemon promises to end within five seconds. If etcd
// does not answer, the reaper waits for two seconds, and then the elector for two more.
const stopTimeout = 4750 * time.Millisecond

// Run starts the daemon, and stops it when ctx is done or a part fails. It returns nil only
// if no part failed and all of them have stopped in time.
func (a *App) Run(ctx context.Context) error {
	a.Start()
	var err error
	select {
	case <-ctx.Done():
		a.logger.Info(api.LogStopping)
	case err = <-a.failed:
	}
	stopping, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err = errors.Join(err, a.Stop(stopping))
	if err == nil {
		a.logger.Info(api.LogStopped)
	}
	return err
}
