package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// check is one property of a client.
type check struct {
	name, about string
	run         func(*trial)
	endpoints   int // 0: one
}

func checks() []check {
	var all []check
	for _, group := range [][]check{lockChecks(), heldChecks(), waitChecks(), faultChecks(), lossChecks()} {
		all = append(all, group...)
	}
	return all
}

// kit runs checks and reports their outcomes.
type kit struct {
	argv      []string
	checks    []check
	parallel  int
	verbose   bool
	out, errs io.Writer

	mu     sync.Mutex
	failed int
}

func (k *kit) list() {
	for _, c := range k.checks {
		_, _ = fmt.Fprintf(k.out, "%-20s %s\n", c.name, c.about)
	}
}

// run runs the checks, several at a time. The checks go on after a failure.
func (k *kit) run(ctx context.Context) error {
	if err := k.probe(); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(k.parallel)
	for _, c := range k.checks {
		group.Go(func() error {
			k.judge(ctx, c)
			return nil
		})
	}
	_ = group.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	if k.failed > 0 {
		return fmt.Errorf("%w: %d of %d checks failed", errFailed, k.failed, len(k.checks))
	}
	_, _ = fmt.Fprintf(k.out, "all %d checks passed\n", len(k.checks))
	return nil
}

// probe starts the driver once, so that one that does not run fails only once.
func (k *kit) probe() error {
	d, err := startDriver(k.argv, []string{"http://127.0.0.1:1"}, func(line string) { k.trace("start", line) })
	if err != nil {
		return err
	}
	err = d.greet()
	d.kill()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, d.stderr)
	}
	return nil
}

func (k *kit) judge(ctx context.Context, c check) {
	if ctx.Err() != nil {
		return
	}
	began := time.Now()
	err := meter(timerLag).try(ctx, c, k.argv, func(line string) { k.trace(c.name, line) })
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	verdict := "ok"
	if err != nil {
		verdict = "FAIL"
		k.failed++
	}
	_, _ = fmt.Fprintf(k.out, "%-4s %-20s %5.1fs  %s\n", verdict, c.name, time.Since(began).Seconds(), c.about)
	if err != nil {
		_, _ = fmt.Fprintf(k.out, "     %s\n", strings.ReplaceAll(err.Error(), "\n", "\n     "))
	}
}

func (k *kit) trace(name, line string) {
	if !k.verbose {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, _ = fmt.Fprintf(k.errs, "%s %s\n", name, line)
}
