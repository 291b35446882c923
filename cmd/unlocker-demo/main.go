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
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
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

// options is what the command line says.
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
