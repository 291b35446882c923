// Command unlocker-demo shows unlocker at work: an etcd inside the process, the
// real daemon beside it, and simulated workers that behave, overrun, die and err.
//
// What it prints was seen: in the answers that the workers got, in a watch on
// etcd, in the daemon's metrics or in its log. It needs nothing but this program
// and leaves nothing behind, however it ends short of SIGKILL. It is no benchmark
// and no test of etcd's failures, and its etcd does not sync to disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	// With SIGPIPE or SIGHUP as they are by default, `unlocker-demo | head` or a
	// closed terminal would leave the directory behind.
	signal.Ignore(syscall.SIGPIPE)
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes, as those of unlocker.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError marks an error that the caller of the command made.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	cmd := newDemo()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(errs, "unlocker-demo: %v\n", err)
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailure
}

func newDemo() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "unlocker-demo",
		Short: "See unlocker at work, on an etcd of its own",
		Long: `Run an etcd inside this process, the real daemon beside it and a few simulated
workers, and tell what happens to their locks. The story takes about 20 seconds;
all stays up afterwards so that you can look around, until Ctrl-C. Nothing is
left behind.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out, o.log = cmd.OutOrStdout(), cmd.ErrOrStderr()
			o.colour = coloured(o.out, os.LookupEnv)
			return perform(cmd.Context(), o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.Flags().BoolVar(&o.once, "once", false, "end after the story: 0 if all of it came true, 1 if not")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "write the daemon's log to stderr as well")
	return cmd
}
