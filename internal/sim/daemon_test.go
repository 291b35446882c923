package sim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/elect"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/probe"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/mutextest/memetcd"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// without takes rules out of the daemon, at the seams that it has.
type without struct {
	config    func(*config.Config)
	rules     func(*verdict.Rules)
	signals   func(verdict.Signals) verdict.Signals
	allowance bool
	// twice counts outages twice.
	twice bool
	// calm takes out that a storm delays.
	calm bool
	// confirmed takes out that a removal waits for a probe.
	confirmed bool
	// departs takes out that a request goes on no connection that is too new.
	departs bool
	source  func(*daemon) reaper.Source
	handler func(slog.Handler) slog.Handler
	// request edits a request before it is sent, answer what came back.
	request func(memetcd.Message)
	answer  func(req, reply memetcd.Message, err error) error
}

// daemon is one process of unlocker, from its start to its end.
type daemon struct {
	w       *world
	replica int
	link    *link
	clock   clock
	// started and ended are since the beginning; ended is 0 while it runs.
	started, ended time.Duration

	table   *table.Table
	probe   *probe.Probe
	scanner *scan.Scanner
	pauses  *pause.Pauses
	elector *elect.Elector
	reaper  *reaper.Reaper

	cancel context.CancelFunc
}

func (d *daemon) identity() string { return fmt.Sprintf("replica-%d", d.replica) }

// now is the daemon's wall clock.
func (d *daemon) now() time.Time {
	return time.Now().Add(shift + d.clock.apart(d.w.elapsed()))
}

// raw is its clock that NTP does not slew.
func (d *daemon) raw() time.Duration {
	passed := d.w.elapsed()
	return passed - passed*time.Duration(d.clock.Slewed)/1_000_000
}

// bound is internal/etcd's client as far as the daemon's behavior depends on it.
func (d *daemon) bound(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.w.config.Etcd.RequestTimeout)
		defer cancel()
	}
	departing := ctx
	if d.link != nil && !d.w.without.departs { // it has logged in
		departing = credentials.NewContextWithRequestInfo(ctx, credentials.RequestInfo{AuthInfo: d.link.network.(credentials.AuthInfo)})
	}
	if err := etcd.Departs(departing); err != nil {
		return err
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if ctx.Err() != nil {
		return fmt.Errorf("no answer from etcd: %w", ctx.Err())
	}
	return err
}

// edit takes out the rules that are seen in requests and answers. It also stands for the rights of the daemon.
func (d *daemon) edit(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, txn := req.(*pb.TxnRequest); txn && slices.Contains(removes(r), guarded) {
		return rpctypes.ErrGRPCPermissionDenied
	}
	if edit := d.w.without.request; edit != nil {
		edit(req.(memetcd.Message))
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if edit := d.w.without.answer; edit != nil {
		err = edit(req.(memetcd.Message), reply.(memetcd.Message), err)
	}
	return err
}

// prober is the daemon's probe, but for the rules that were taken out.
type prober struct {
	*probe.Probe
	allowance verdict.Allowance
}

func (p prober) Allowance(written int64, learned time.Time, stamped bool) (time.Duration, time.Duration) {
	return p.allowance(written, learned, stamped)
}

// unasked is a probe that is always good.
type unasked struct{ prober }

func (unasked) Begin()                                 {}
func (unasked) Await(context.Context, time.Time) error { return nil }
func (unasked) Good() time.Time                        { return time.Now() }

type discard struct{}

func (discard) Observe(float64) {}

func explain(err error) error { return err }

// wire makes the parts as internal/app does.
func (d *daemon) wire(c config.Config) (err error) {
	layout, err := protocol.NewLayout(c.Prefix)
	if err != nil {
		return err
	}
	out, rules := d.w.without, verdict.RulesFromConfig(c)
	if out.rules != nil {
		out.rules(&rules)
	}
	allowance := func(written int64, learned time.Time, stamped bool) (time.Duration, time.Duration) {
		if out.allowance {
			return 0, 0
		}
		deadline, patience := d.probe.Allowance(written, learned, stamped)
		if out.twice {
			return 2 * deadline, 2 * patience
		}
		return deadline, patience
	}
	var handler slog.Handler = &journal{d}
	if out.handler != nil {
		handler = out.handler(handler)
	}
	logger := slog.New(handler)
	d.pauses, err = pause.New(pause.Options{
		FollowerOptions: etcd.FollowerOptions{
			Client: d.link.Client, Prefix: c.PauseKeys(), RequestTimeout: c.Etcd.RequestTimeout, Freshness: c.Reaper.Freshness,
			Explain: explain, Logger: logger,
		},
		Changed: func(ctx context.Context) { _ = d.table.Resume(ctx) },
	})
	if err != nil {
		return err
	}
	if out.calm {
		rules.Storm = config.Storm{}
	}
	d.table, err = table.New(table.Options{
		Rules: rules, Allowance: allowance, Paused: d.pauses.Matches, Lead: func() time.Duration { return d.probe.Lead() },
		Now: d.now, Raw: d.raw, HoldDuration: discard{}, RenewalMargin: discard{},
	})
	if err != nil {
		return err
	}
	d.probe, err = probe.New(probe.Options{
		Etcd: d.link.Client, Members: 3, Interval: c.Reaper.ProbeInterval, Timeout: c.Etcd.RequestTimeout, Patience: rules.MinGrace(),
		Ended: func(ctx context.Context) { _ = d.table.Reschedule(ctx) },
	})
	if err != nil {
		return err
	}
	d.scanner, err = scan.New(scan.Options{
		Client: d.link.Client, Layout: layout, Table: d.table, Freshness: c.Reaper.Freshness, Tolerance: rules.ClockTolerance,
		Resync: c.ResyncInterval, RequestTimeout: c.Etcd.RequestTimeout, Explain: explain,
		Newest: func() int64 { return d.probe.Status().Revision }, Restored: d.probe.Forget, Logger: logger,
	})
	if err != nil {
		return err
	}
	d.elector, err = elect.New(elect.Options{
		Client: d.link.Client, Key: c.ElectionKey(), TTL: c.Election.TTL, Identity: d.identity(),
		RequestTimeout: c.Etcd.RequestTimeout, Explain: explain, Logger: logger,
	})
	if err != nil {
		return err
	}
	var shows reaper.Probe = prober{d.probe, allowance}
	if out.confirmed {
		shows = unasked{prober{d.probe, allowance}}
	}
	var source reaper.Source = d.table
	if out.source != nil {
		source = out.source(d)
	}
	d.reaper, err = reaper.New(reaper.Options{
		Store:  lockstore.Store{KV: d.link.KV, Layout: layout, Pauses: c.PauseKeys(), RequestTimeout: c.Etcd.RequestTimeout, Explain: explain},
		Source: source, Rules: rules, Signals: d.signals, Leader: d.elector.Leader, Pauses: d.pauses,
		Probe: shows, Retention: c.Metrics.ForcedUnlockRetention, Delay: discard{}, Now: d.now, Sleep: sleep, Logger: logger,
	})
	return err
}

// signals are those of the real daemon, but for the rules that were taken out.
func (d *daemon) signals() verdict.Signals {
	s := app.Signals(d.scanner, d.probe, d.pauses, true)
	if out := d.w.without.signals; out != nil {
		return out(s)
	}
	return s
}

// sleep is a plain timer: the daemon's own waits for the system's, outside of the bubble.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (d *daemon) run() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	for _, run := range []func(context.Context) error{d.table.Run, d.scanner.Run, d.probe.Run, d.pauses.Run, d.elector.Run, d.reaper.Run} {
		d.w.people.Go(func() {
			if err := run(ctx); err != nil {
				d.w.judge.failed(d, err)
			}
		})
	}
}

// kill ends the process at once: what it has sent is sent, and its leadership stays
// until the lease ends. Its goroutines end a little later, without a connection.
func (d *daemon) kill() {
	d.ended = d.w.elapsed()
	d.link.Cut()
	d.cancel()
	_ = d.link.Close()
}
