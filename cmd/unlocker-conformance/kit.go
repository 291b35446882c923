package main

import (
	"context"
	"fmt"
	"io"
	"slices"
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
	return slices.Concat(lockChecks(), heldChecks(), waitChecks(), faultChecks(), lossChecks())
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
	for _, c := range slices.Backward(k.checks) { // the slow ones first
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

const (
	// tolerable is how long a machine may stall during a check that convicts a client.
	tolerable = 250 * time.Millisecond
	// tries is how often a check runs on a machine that stalls each time.
	tries = 3
)

// meter measures how long this machine stalled, until the function that it returns is called.
type meter func() (stop func() time.Duration)

// try runs a check and returns why the client failed it. If the machine stalled meanwhile,
// that may be the reason, and the check runs again.
func (m meter) try(ctx context.Context, c check, argv []string, log func(string)) error {
	for n := 1; ; n++ {
		stop := m()
		err := try(ctx, c, argv, log)
		stood := stop()
		if err == nil || ctx.Err() != nil || stood < tolerable {
			return err
		}
		stood = stood.Round(time.Millisecond)
		if n == tries {
			return fmt.Errorf("%w\nthe machine stalled for %v meanwhile: this may be its fault", err, stood)
		}
		log(fmt.Sprintf("the machine stalled for %v, and the check failed; again: %v", stood, err))
	}
}

// timerLag is a meter. A timer that is late shows it.
func timerLag() (stop func() time.Duration) {
	const interval = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	longest, last := make(chan time.Duration), time.Now() // the goroutine may start late, too
	go func() {
		stood := time.Duration(0)
		for again := true; again; again = ctx.Err() == nil {
			<-time.After(interval)
			now := time.Now()
			stood, last = max(stood, now.Sub(last)-interval), now
		}
		longest <- stood
	}()
	return func() time.Duration {
		cancel()
		return <-longest
	}
}
