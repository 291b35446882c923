package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// The checks: the story came true if all of them passed.
const (
	invoicesUnlocked = invoices + ": renewed in time, never overdue, unlocked by its holder"
	monthlyOverdue   = monthly + ": overdue in the metrics, with its holder"
	monthlyRenewed   = monthly + ": no longer overdue once its holder renewed it"
	apiLogged        = deployAPI + ": logged in full before its removal, the outcome after it"
	apiRemoved       = deployAPI + ": not removed before it was due, then in one transaction"
	apiCounted       = deployAPI + ": counted as a forced unlock in the metrics"
	apiPassedOn      = deployAPI + ": now held by the worker that waited"
	warmupMalformed  = warmup + ": counted as malformed in the metrics"
	warmupKept       = warmup + ": not removed, as its deadline is unreadable"
	nightlyMeasured  = nightly + ": its holder's slow clock shows in the metrics"
	nightlyKept      = nightly + ": not removed, as its holder renews it"
)

func checks() []string {
	return []string{
		invoicesUnlocked, monthlyOverdue, monthlyRenewed, apiLogged, apiRemoved, apiCounted, apiPassedOn,
		warmupMalformed, warmupKept, nightlyMeasured, nightlyKept,
	}
}

// report prints what was observed and keeps what the checks need.
type report struct {
	options
	colour bool
	start  time.Time
	stop   func() // ends the demo

	mu       sync.Mutex // protects the fields below and the output
	locks    map[string]*lockKeys
	seen     map[string]bool // the checks that passed, and what is printed once
	mistakes []string        // what must not happen, but has
	outcome  error           // of the story
}

func newReport(o options, stop func()) *report {
	return &report{
		options: o, colour: terminal.Colored(o.out), start: time.Now(), stop: stop,
		locks: map[string]*lockKeys{}, seen: map[string]bool{}, outcome: errInterrupted,
	}
}

// first notes what is seen, and reports whether it is for the first time.
func (r *report) first(what string) bool {
	before := r.seen[what]
	r.seen[what] = true
	return !before
}

func (r *report) allPassed() bool {
	return !slices.ContainsFunc(checks(), func(check string) bool { return !r.seen[check] })
}

// wrong notes what must not happen in the story. After it, the user may do anything.
func (r *report) wrong(what string) {
	if errors.Is(r.outcome, errInterrupted) && !slices.Contains(r.mistakes, what) {
		r.mistakes = append(r.mistakes, what)
		r.say("demo", terminal.Red, "this should not have happened: %s", what)
	}
}

// awaitEnd finishes the story when all checks have passed, or it takes too long.
func (r *report) awaitEnd(ctx context.Context, d *daemon) error {
	for passed := false; !passed && time.Since(r.start) < storyTimeout; {
		r.mu.Lock()
		passed = r.allPassed()
		r.mu.Unlock()
		if err := pause(ctx, lull); err != nil {
			return err
		}
	}
	r.finish(d)
	if r.once {
		r.stop()
	}
	return nil
}

func (r *report) introduce() {
	r.print("unlocker demo: an etcd, the unlocker daemon, and six simulated workers\n\n")
	for _, w := range workers() {
		r.print("  %-9s  %s\n", w.host, w.about)
	}
	r.print(`
Each line below says when (in seconds) and where something was observed: by a
worker, in etcd, in the daemon's metrics, or in its log. The story takes about
15 seconds. Ctrl-C stops it at any time and leaves no files.

`)
}

// ready says where to look.
func (r *report) ready(d *daemon) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.say("demo", terminal.Plain, "etcd and unlocker are up: open http://%s/", d.app.WebAddr())
	r.say("demo", terminal.Plain, "or, in another terminal, same directory:")
	r.print(`
    go run ./cmd/unlocker list -o wide --etcd-endpoints %s \
      --url http://%s
    curl -s http://%s/metrics | grep ^unlocker_
    curl -s http://%s/api/v1/locks
    tail -f %s

`, d.cluster.Addr(0), d.app.WebAddr(), d.app.OpsAddr(), d.app.WebAddr(), d.log.Name())
}

// finish prints the result of the story, and what to try while everything still runs.
func (r *report) finish(d *daemon) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome = nil
	if !r.allPassed() || len(r.mistakes) > 0 {
		r.outcome = errNotTrue
	}
	r.print("\nThe story is over. Its checks:\n\n")
	for _, check := range append(checks(), r.mistakes...) {
		line := r.paint(terminal.Green, "✓ "+check)
		if !r.seen[check] {
			line = r.paint(terminal.Red, "✗ "+check)
		}
		r.print("  %s\n", line)
	}
	if !r.once {
		r.print(`
Everything keeps running until Ctrl-C. Try this in another terminal:

  # see what unlocker logged before it removed deploy/api
    grep '%s' \
      %s
  # remove cache/warmup by hand; unlocker never removes it by itself
    go run ./cmd/unlocker unlock cache/warmup --etcd-endpoints %[4]s \
      --uuid %[3]s
  # take a lock whose holder is killed: unlocker removes it 7 seconds later
    go run ./cmd/unlocker lock try --patience 5s \
      --etcd-endpoints %[4]s -- sh -c 'kill -9 $PPID'
  # meanwhile, ask when that will be
    go run ./cmd/unlocker show try --etcd-endpoints %[4]s \
      --url http://%[5]s
`, api.LogRemoving, d.log.Name(), r.lock(warmup).fields["uuid"], d.cluster.Addr(0), d.app.WebAddr())
	}
	r.print("\nRead next: README.md, docs/protocol.md (how to lock), docs/metrics.md (alerts)\n\n")
}

// say prints a line with the time and who says it. It escapes control characters, as
// names and values in etcd may be anything.
func (r *report) say(who string, colour terminal.Color, format string, args ...any) {
	quoted := strconv.Quote(fmt.Sprintf(format, args...))
	r.print("%5.1f  %-9s  %s\n", time.Since(r.start).Seconds(), who, r.paint(colour, quoted[1:len(quoted)-1]))
}

func (r *report) paint(colour terminal.Color, text string) string {
	if !r.colour {
		return text
	}
	return terminal.Paint(text, colour)
}

// print writes text; it ends the demo when the output is closed.
func (r *report) print(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format, args...); err != nil {
		r.stop()
	}
}
