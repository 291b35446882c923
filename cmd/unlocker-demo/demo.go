package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

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
	r.say("demo", plain, "etcd, unlocker and workers have stopped; no files are left")
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
		return watchMetrics(ctx, r, "http://"+d.app.OpsAddr().String()+"/metrics", func() {
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
