package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/check"
	"github.com/etcd-unlocker/unlocker/internal/client"
)

type checkFlags struct {
	client.Options
	check.Rules
	timeout, forced, hold uint
	verbose               int
}

func newCheck() *cobra.Command {
	f := &checkFlags{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the daemon and its locks, as a Nagios plugin",
		Long: `Query the API of the daemon, or of each of its replicas, and print the result as
plugins for Nagios and Icinga do. The exit code is 0 for OK, 1 for WARNING, 2 for
CRITICAL and 3 for UNKNOWN. The command does not read the configuration file.

CRITICAL: no daemon answers and reports on the locks within the timeout; etcd raised
an alarm, so holders cannot renew; the number of overdue locks is outside the
--critical range.
WARNING: one of several daemons does not answer or does not report on the locks;
expired locks were removed; removals have been on hold for too long; there are undated
or malformed locks; the number of overdue locks is outside the --warning range.
UNKNOWN: the command line is wrong.

With --lock, only that lock is checked. It is OK if it is held or not held, WARNING if
it is overdue, undated or malformed or was removed after it expired, and CRITICAL if it
is expired or no daemon reports on it.

RANGE is [@][START:][END] as for all Nagios plugins. It alerts on a number below START
or above END: "10" on less than 0 or more than 10, "10:" on less than 10, "~:10" on
more than 10, "10:20" on less than 10 or more than 20. "@10:20" alerts on 10 to 20.
An empty RANGE never alerts.`,
		// RunE refuses arguments, with the output of a plugin.
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return report(cmd.OutOrStdout(), f.result(cmd, args))
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return report(cmd.OutOrStdout(), check.Misused(fmt.Errorf("%w; see unlocker check --help", err)))
	})
	f.add(cmd)
	return cmd
}

func (f *checkFlags) add(cmd *cobra.Command) {
	_ = errors.Join(f.Warning.Set("0"), f.Undated.Set("0")) // valid literals
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.URLs, "url", []string{"http://127.0.0.1:9481"},
		"`URL` of a daemon's web listener with its path prefix; repeat for each replica")
	flags.VarP(&f.Warning, "warning", "w", "WARNING if the number of overdue and expired locks is outside `RANGE` (default 0)")
	flags.VarP(&f.Critical, "critical", "c", "CRITICAL if the same number is outside `RANGE` (default none)")
	flags.Var(&f.Undated, "undated", "WARNING if the number of undated and malformed locks, which are never removed automatically, is outside `RANGE` (default 0)")
	flags.StringVar(&f.Lock, "lock", "", "check only the lock `NAME`")
	flags.UintVar(&f.forced, "forced-minutes", 60, "WARNING if expired locks were removed in the last `MINUTES`; 0 ignores them")
	flags.UintVar(&f.hold, "hold-minutes", 5, "WARNING if removals have been on hold for more than `MINUTES`; 0 ignores holds")
	flags.UintVarP(&f.timeout, "timeout", "t", 10, "time limit for the whole check, in `SECONDS`")
	flags.CountVarP(&f.verbose, "verbose", "v", "also print the locks concerned with their holders, and the daemons with their holds")
	addClientFlags(flags, &f.Options)
}

func (f *checkFlags) result(cmd *cobra.Command, args []string) check.Result {
	if err := f.settle(cmd, args); err != nil {
		return check.Misused(fmt.Errorf("%w; see unlocker check --help", err))
	}
	daemons, err := client.New(f.Options)
	if err != nil {
		return check.Misused(err)
	}
	answers := check.Ask(cmd.Context(), daemons, f.Rules)
	if cmd.Context().Err() != nil {
		return check.Misused(errors.New("interrupted"))
	}
	result := check.Judge(f.Rules, answers)
	if f.verbose == 0 {
		result.Long = nil
	}
	return result
}

// settle checks the flags against each other, and converts numbers to durations.
func (f *checkFlags) settle(cmd *cobra.Command, args []string) error {
	const day = 24 * 60
	given := cmd.Flags().Changed
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case given("lock") && f.Lock == "":
		return errors.New("--lock requires a name")
	case given("lock") && (given("warning") || given("critical") || given("undated")):
		return errors.New("--lock excludes --warning, --critical and --undated, which count locks")
	case f.timeout == 0 || f.timeout > 600:
		return errors.New("--timeout must be 1 to 600 seconds")
	case f.forced > 366*day || f.hold > 366*day:
		return errors.New("--forced-minutes and --hold-minutes must be at most a year")
	}
	f.Timeout = time.Duration(f.timeout) * time.Second
	f.Forced = time.Duration(f.forced) * time.Minute
	f.Hold = time.Duration(f.hold) * time.Minute
	return nil
}

// report prints a result, and returns its exit code as an error if it is not 0.
func report(w io.Writer, r check.Result) error {
	if _, err := io.WriteString(w, r.String()); err != nil {
		return exitCode(int(check.Unknown))
	}
	if r.State != check.OK {
		return exitCode(int(r.State))
	}
	return nil
}
