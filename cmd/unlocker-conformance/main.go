// Command unlocker-conformance judges clients of protocol 1 by what they do in etcd.
//
// It runs a client as a process, sends commands to its standard input, and runs an etcd
// behind proxies which it observes and disturbs: each request of the client and each change
// in etcd is seen, and the next write can be raced, cut or delayed. docs/conformance.md
// describes the commands and the checks.
//
// It does not judge TLS, authentication, performance, or fields that are only described.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

func main() {
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

const help = `Judge a client of the lock protocol by what it does in etcd.

Usage:
  unlocker-conformance [flags] -- COMMAND [ARG…]

COMMAND is started for each check, gets commands on its standard input, one JSON object
per line, and answers each on its standard output. See docs/conformance.md.

Flags:
`

// errUnjudged is of a check of something optional that the client does not do.
var errUnjudged = errors.New("not judged")

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	k := &kit{out: out, errs: errs}
	flags := pflag.NewFlagSet("unlocker-conformance", pflag.ContinueOnError)
	flags.SetInterspersed(false)
	list := flags.Bool("list", false, "list the checks")
	pattern := flags.String("run", "", "run only the checks that match this regular expression")
	flags.IntVar(&k.parallel, "parallel", 4, "how many checks run at a time")
	flags.BoolVar(&k.strict, "strict", false, "fail also checks of what the client does not do")
	flags.BoolVarP(&k.verbose, "verbose", "v", false, "write commands and answers to stderr")
	flags.Usage = func() { _, _ = fmt.Fprint(out, help, flags.FlagUsages()) }
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	if err == nil {
		k.argv = flags.Args()
		err = k.choose(*pattern)
	}
	code := exitUsage
	switch {
	case err != nil:
	case *list:
		for _, c := range k.checks {
			_, _ = fmt.Fprintf(k.out, "%-20s %s\n", c.name, c.about)
		}
	case len(k.argv) == 0:
		err = errors.New("no command given; see --help")
	case k.parallel < 1:
		err = fmt.Errorf("--parallel must be at least 1, not %d", k.parallel)
	default:
		err, code = k.run(ctx), exitFailure
	}
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(errs, "unlocker-conformance: %v\n", err)
	return code
}

func (k *kit) choose(pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("--run: %w", err)
	}
	k.checks = slices.DeleteFunc(checks(), func(c check) bool { return !re.MatchString(c.name) })
	if len(k.checks) == 0 {
		return fmt.Errorf("--run: no check matches %q", pattern)
	}
	return nil
}

type check struct {
	name, about string
	run         func(*trial)
	endpoints   int // 0: one
}

func checks() []check {
	return []check{
		{name: "lock", about: "one transaction writes all fields, without leases", run: checkLock},
		{name: "lock-deadlines", about: "timestamps are as asked for, in seconds, according to the clock of the client", run: checkDeadlines},
		{name: "lock-atomic", about: "a lock that is taken concurrently is not overwritten", run: func(t *trial) { t.raced(t.driver(), lockCommand(invoices), invoices, "held") }},
		{name: "lock-held", about: "a held lock is refused with its holder, and nothing is written", run: checkLockHeld},
		{name: "leftovers", about: "the holder has no fields of an earlier one", run: checkLeftovers},
		{name: "uuid", about: "each acquisition has a new uuid, and keeps it", run: checkUUID},
		{name: "token", about: "the fencing token is the create_revision of the uuid", run: checkToken},
		{name: "names", about: "all valid names can be locked, and no others", run: checkNames},
		{name: "try-lock-all", about: "of many locks those that are free are taken, each whole", run: checkTryLockAll},
		{name: "quit", about: "quit is answered and ends the process with 0", run: checkQuit},

		{name: "alive", about: "one transaction moves both deadlines and writes alive_at", run: checkAlive},
		{name: "alive-compared", about: "a renewal changes nothing if the lock is lost", run: checkAliveCompared},
		{name: "answer", about: "a client that answers questions renews nothing by that, and answers several at once", run: checkAnswer},
		{name: "unlock", about: "one transaction deletes all keys of the lock and none of nested names", run: checkUnlock},
		{name: "unlock-compared", about: "the lock of another is not removed", run: checkUnlockCompared},

		{name: "wait", about: "a waiter sends nothing while it waits but what keeps its ticket, and takes the lock at once when it is free", run: checkWait},
		{name: "wait-timeout", about: "a wait ends in time, with the holder", run: checkWaitTimeout},
		{name: "wait-revision", about: "a release before the watch has begun is not missed", run: func(t *trial) { checkWaitAfter(t, t.otherWrites) }},
		{name: "wait-compacted", about: "a waiter survives the compaction of the revision that it waits from", run: checkWaitCompacted},
		{name: "wait-cut", about: "a waiter survives the loss of its connection", run: checkWaitCut},
		{name: "contention", about: "each of several waiters gets the lock", run: checkContention},
		{name: "queue", about: "waiters take the lock in the order of their tickets, which they delete by that or when they give up", run: func(t *trial) { checkQueue(t, false) }},
		{name: "queue-newcomer", about: "a newcomer that waits does not overtake others, and one that does not wait takes what is free", run: func(t *trial) { checkPassedOver(t, true) }},
		{name: "queue-passed-over", about: "a waiter that is suspended is passed over after a second, and queues again", run: func(t *trial) { checkPassedOver(t, false) }},
		{name: "queue-ticketless", about: "waiters keep their places if a client without a ticket takes the lock", run: func(t *trial) { checkQueue(t, true) }},
		{name: "slots", about: "no more slots are held than there are, each is a lock, and two that are free are taken at once, in order", run: checkSlots},

		{name: "lock-answer-cut", about: "a lock whose answer was lost is recognized as one's own", run: checkLockCut},
		{name: "alive-answer-cut", about: "a renewal whose answer was lost is repeated", run: checkAliveCut},
		{name: "alive-late", about: "a renewal that is executed late does not move the deadline back", run: checkAliveLate},
		{name: "lock-late", about: "a lock that is taken late, by a command that gave up, is released in the background", run: checkLockLate},
		{name: "unlock-answer-cut", about: "an unlock whose answer was lost is repeated, and succeeds", run: checkUnlockCut},
		{name: "unlock-late", about: "a lock that is taken late, after its unlock, is released in the background", run: checkUnlockLate},
		{name: "timeouts", about: "commands end in time if etcd is silent", run: func(t *trial) { checkUnavailable(t, t.proxy.Blackhole) }},
		{name: "timeouts-trickle", about: "commands end in time if answers arrive byte by byte", run: func(t *trial) { checkUnavailable(t, t.proxy.Trickle) }},
		{name: "abandoned", about: "a request without an answer is given up after 5 s", run: checkAbandoned},
		{name: "refused", about: "commands end in time if no connection is possible", run: func(t *trial) { checkUnavailable(t, t.proxy.Cut) }},
		{name: "restart", about: "etcd is restarted during lock, alive and a wait", run: checkRestart},
		{name: "failover", about: "one of two endpoints suffices", run: checkFailover, endpoints: 2},

		{name: "lost-deadline", about: "a lock that is not renewed is lost before its deadline", run: checkLostDeadline},
		{name: "lost-unreachable", about: "a renewal that gets no answer gives up before the deadline", run: checkLostUnreachable},
		{name: "lost-shorter", about: "a renewal that moves the deadline closer counts without its answer", run: checkLostShorter},
		{name: "lost-unlock", about: "unlock reports the loss at once and releases the lock in the background", run: checkLostUnlock},
		{name: "lost-suspended", about: "a process that was suspended past its deadline knows it at once", run: checkLostSuspended},
		{name: "lost-restored", about: "a lock is lost in an etcd that was restored or replaced", run: checkLostRestored},
	}
}

type kit struct {
	argv      []string
	checks    []check
	parallel  int
	strict    bool
	verbose   bool
	out, errs io.Writer

	mu              sync.Mutex
	failed, skipped int
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
		return fmt.Errorf("the client does not conform: %d of %d checks failed", k.failed, len(k.checks))
	}
	_, _ = fmt.Fprintf(k.out, "%d checks passed, %d not judged\n", len(k.checks)-k.skipped, k.skipped)
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
		return fmt.Errorf("%w\n%s", err, d.complaint())
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
	switch {
	case errors.Is(err, errUnjudged) && !k.strict:
		verdict = "skip"
		k.skipped++
	case err != nil:
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
