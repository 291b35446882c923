// Command unlocker-demo shows unlocker at work: an etcd inside the process, the
// real daemon, and six simulated workers, some of which go wrong.
//
// Everything it prints was observed: in the answers that the workers got, in a
// watch on etcd, in the daemon's metrics or in its log. It needs no other program
// and removes its files however it ends, except by SIGKILL. It does not measure
// performance, it does not make etcd fail, and its etcd does not sync to disk.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

func main() {
	// By default SIGPIPE and SIGHUP end the process at once: `unlocker-demo | head`
	// or a closed terminal would leave files.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes, the same as those of unlocker.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const help = `Show unlocker at work: an etcd inside this process, the daemon and six simulated
workers. The story takes 15 seconds; then everything keeps running until Ctrl-C.

Flags:
`

type options struct {
	once, verbose bool
	out, errs     io.Writer
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	o := options{out: out, errs: errs}
	flags := pflag.NewFlagSet("unlocker-demo", pflag.ContinueOnError)
	flags.BoolVar(&o.once, "once", false, "stop after the story; exit with 0 if it came true, with 1 if not")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "write the daemon's log to stderr as well")
	flags.Usage = func() { _, _ = fmt.Fprint(out, help, flags.FlagUsages()) }
	err, code := flags.Parse(args), exitUsage
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return exitOK
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case err == nil:
		err, code = runDemo(ctx, o), exitFailure
	}
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(errs, "unlocker-demo: %v\n", err)
	return code
}

var (
	errNotTrue     = errors.New("the story did not come true")
	errInterrupted = errors.New("interrupted before the end of the story")
	errLost        = errors.New("the lock is lost")
)

const (
	storyTimeout = time.Minute            // on a busy machine; the story takes 15 seconds
	lull         = 600 * time.Millisecond // for late lines after the last check
	stagger      = 500 * time.Millisecond // between the starts of two workers
)

// runDemo runs etcd, the daemon, the workers and what observes them until ctx is done,
// the output is closed or, with --once, the story is over. Then nothing is left of them.
func runDemo(ctx context.Context, o options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newReport(o, cancel)
	r.introduce()
	if err := runAll(ctx, r); err != nil {
		return err
	}
	r.say("demo", terminal.Plain, "etcd, unlocker and workers have stopped; no files are left")
	if o.once {
		return r.outcome
	}
	return nil
}

func runAll(ctx context.Context, r *report) (err error) {
	d := &daemon{}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.start(ctx, r); err != nil {
		return expected(ctx, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	start := func(do func(context.Context) error) {
		group.Go(func() error { return expected(ctx, do(ctx)) })
	}
	group.Go(func() error { return d.app.Run(ctx) }) // returns nil if it stops in order
	start(func(ctx context.Context) error { return r.awaitEnd(ctx, d) })
	start(func(ctx context.Context) error {
		return watchMetrics(ctx, r, "http://"+d.app.OpsAddr()+"/metrics", func() {
			r.ready(d)
			start(func(ctx context.Context) error { return watchLocks(ctx, d.client, r) })
			for i, w := range workers() {
				w.client, w.report, w.starts = d.client, r, time.Duration(i)*stagger
				start(w.run)
			}
		})
	})
	return group.Wait()
}

// expected drops the errors that the end of the demo causes, and that of a worker whose
// lock the user removed.
func expected(ctx context.Context, err error) error {
	if ctx.Err() == nil && !errors.Is(err, errLost) {
		return err
	}
	return nil
}

// pause waits; it returns an error if ctx is done first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	prefix = "/mutexes/"
	grace  = 2 * time.Second
)

// daemon is the unlocker daemon with an etcd and a log file of its own.
type daemon struct {
	log     *os.File
	cluster *localetcd.Cluster
	client  *clientv3.Client
	app     *app.App
}

// start starts etcd and makes the daemon, whose Run is left to the caller. close must
// be called even if start fails.
func (d *daemon) start(ctx context.Context, r *report) (err error) {
	if d.log, err = os.CreateTemp("", "unlocker-demo-*.log"); err != nil {
		return err
	}
	if d.cluster, err = localetcd.Start(ctx, localetcd.Options{UnsafeNoFsync: true}); err != nil {
		return err
	}
	if d.client, err = d.cluster.Client(); err != nil {
		return err
	}
	c := config.Default()
	c.Prefix, c.Reaper.Grace = prefix, grace
	c.Etcd.Endpoints = d.cluster.Endpoints()
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	// Shorter than the defaults, as this etcd is in the same process.
	c.Reaper.Settle, c.Reaper.Freshness = 2*time.Second, 3*time.Second
	log := io.MultiWriter(d.log, logReader{r})
	if r.verbose {
		log = io.MultiWriter(log, r.errs)
	}
	d.app, err = app.New(c, slog.New(slog.NewJSONHandler(log, nil)))
	return err
}

// close stops etcd and removes all files. The daemon must have stopped.
func (d *daemon) close() (err error) {
	if d.cluster != nil {
		err = d.cluster.Close()
	}
	if d.log != nil {
		err = errors.Join(err, d.log.Close(), os.Remove(d.log.Name()))
	}
	return err
}

// logReader reads the daemon's log, which is written line by line: one line before each
// removal, and one with its outcome. The daemon continues when the report has the line.
type logReader struct{ *report }

func (r logReader) Write(b []byte) (int, error) {
	var l struct {
		Msg, Lock   string
		KeysDeleted int `json:"keys_deleted"`
		Verdict     struct{ Due time.Time }
		Record      struct{ Hostname, PID, Purpose, Backtrace string }
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch l.Msg {
	case api.LogRemoving:
		r.seen[l.Msg+l.Lock] = true
		r.say("unlocker", terminal.Red, "REMOVES %s. It logs the whole lock first:", l.Lock)
		for _, field := range [][2]string{
			{"hostname", l.Record.Hostname}, {"pid", l.Record.PID}, {"purpose", l.Record.Purpose}, {"backtrace", l.Record.Backtrace},
			{"due", fmt.Sprintf("at %.1f, after a grace period of %v", l.Verdict.Due.Sub(r.start).Seconds(), grace)},
		} {
			if field[1] != "" {
				r.say("", terminal.Plain, "  %-9s  %s", field[0], field[1])
			}
		}
	case api.LogRemoved:
		r.say("unlocker", terminal.Red, "removed %s: %d keys in one transaction", l.Lock, l.KeysDeleted)
		if l.Lock == deployAPI && r.seen[api.LogRemoving+deployAPI] {
			r.first(apiLogged)
		}
	}
	return len(b), nil
}
