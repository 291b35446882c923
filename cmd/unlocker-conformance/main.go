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
	"syscall"

	"github.com/spf13/pflag"
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

var errFailed = errors.New("the client does not conform")

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	k := &kit{out: out, errs: errs}
	flags := pflag.NewFlagSet("unlocker-conformance", pflag.ContinueOnError)
	flags.SetInterspersed(false)
	list := flags.Bool("list", false, "list the checks")
	pattern := flags.String("run", "", "run only the checks that match this regular expression")
	flags.IntVar(&k.parallel, "parallel", 4, "how many checks run at a time")
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
		k.list()
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
	for _, c := range checks() {
		if re.MatchString(c.name) {
			k.checks = append(k.checks, c)
		}
	}
	if len(k.checks) == 0 {
		return fmt.Errorf("--run: no check matches %q", pattern)
	}
	return nil
}
