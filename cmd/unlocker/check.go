package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/check"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
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

type drillFlags struct {
	admin.Drill
	daemons                  client.Options
	prometheus, alertmanager string
	timeout                  time.Duration
	quiet                    bool
}

func newDrill() *cobra.Command {
	f := &drillFlags{}
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Prove that alerts and removals work, with a lock that expires",
		Long: `Take the lock unlocker-drill/HOST, let it expire, and report what is seen of it and when:
each replica sees it, each shows it as overdue, Prometheus has its metrics, Alertmanager an
alert about it, it is removed, the record of that is in etcd, each replica lists it as a
forced unlock, and a waiter gets the lock. It is a real lock with a real alert; its purpose
says what it is.

--unlock-after must be longer than Prometheus needs to scrape and to evaluate its rules.

If no replica would remove the lock (off, dry run, hold, pause, policy, brake), the
command says why and fails. Then, after --timeout and after Ctrl-C, it releases the lock.

The exit code is 0 if every step was seen, 1 if one is missing, the lock would not be
removed, or etcd failed, and 2 if the command line or the configuration is wrong.`,
		Example: `  unlocker drill --url http://unlocker-0:9481 --url http://unlocker-1:9481
  unlocker drill --prometheus http://prometheus:9090 --alertmanager http://alertmanager:9093
  unlocker drill --alert-after 5s --unlock-after 10s --quiet`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.settle(); err != nil {
				return usageError(err)
			}
			return withAdmin(cmd, func(a *admin.Admin) error { return f.run(cmd, a) })
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.daemons.URLs, "url", []string{"http://127.0.0.1:9481"},
		"`URL` of a daemon's web listener with its path prefix; repeat for each replica")
	flags.StringVar(&f.prometheus, "prometheus", "", "`URL` of the Prometheus that should scrape the replicas; it gets no password")
	flags.StringVar(&f.alertmanager, "alertmanager", "", "`URL` of the Alertmanager that should get the alert; it gets no password")
	config.DurationVar(flags, &f.AlertAfter, "alert-after", 10*time.Second, "the lock is overdue after this time")
	config.DurationVar(flags, &f.UnlockAfter, "unlock-after", time.Minute, "the lock expires after this time")
	config.DurationVar(flags, &f.timeout, "timeout", 3*time.Minute, "give up after this time")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing if every step was seen, for cron")
	addClientFlags(flags, &f.daemons)
	addConfigFlags(flags, "audit-prefix")
	return cmd
}

// settle checks the flags and makes the clients.
func (f *drillFlags) settle() (err error) {
	if f.AlertAfter < time.Second || f.UnlockAfter <= f.AlertAfter || f.timeout <= f.UnlockAfter || f.timeout > time.Hour {
		return errors.New("--alert-after, --unlock-after and --timeout must be 1s to 1h, each longer than the one before")
	}
	o := f.daemons
	for _, url := range f.daemons.URLs {
		o.URLs, o.Timeout = []string{url}, explainTimeout
		c, err := client.New(o)
		if err != nil {
			return err
		}
		f.Replicas = append(f.Replicas, c)
	}
	others := []**client.Client{&f.Prometheus, &f.Alertmanager}
	for i, url := range []string{f.prometheus, f.alertmanager} {
		if o.URLs, o.Username, o.PasswordFile = []string{url}, "", ""; url != "" && err == nil {
			*others[i], err = client.New(o)
		}
	}
	return err
}

func (f *drillFlags) run(cmd *cobra.Command, a *admin.Admin) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	var mu sync.Mutex
	f.Report = func(s admin.Step) {
		mu.Lock()
		defer mu.Unlock()
		if !f.quiet {
			printStep(cmd.ErrOrStderr(), &s)
		}
	}
	steps, err := a.Drill(ctx, f.Drill)
	if err == nil && slices.ContainsFunc(steps, func(s *admin.Step) bool { return s.After == 0 }) {
		err = exitCode(exitFailure)
	}
	for _, s := range steps {
		if err != nil || !f.quiet {
			printStep(cmd.OutOrStdout(), s)
		}
	}
	return err
}

func printStep(w io.Writer, s *admin.Step) {
	line := fmt.Sprintf("✓ %6.1fs  %s", s.After.Seconds(), s.Name)
	if s.After == 0 {
		line = fmt.Sprintf("✗       -  %s: %s", s.Name, s.Why)
	}
	_, _ = fmt.Fprintln(w, terminal.Strip(line))
}
