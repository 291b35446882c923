package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/check"
)

// checkFlags are the flags of check, as numbers and texts.
type checkFlags struct {
	check.Options
	check.Rules
	timeout, forced, hold uint
	verbose               int
}

func newCheck() *cobra.Command {
	f := &checkFlags{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check daemons, as a Nagios plugin",
		Long: `Ask the web listener of the daemon, or of each of its replicas, and print one line
as plugins for Nagios and Icinga do. Exit with 0 OK, 1 WARNING, 2 CRITICAL or
3 UNKNOWN. None of these flags is a key of the configuration.

CRITICAL: no daemon answers in time, or none that does sees the locks; etcd raised
an alarm, so that owners cannot renew; -c. WARNING: one of several daemons does not
answer or does not see the locks; forced unlocks; removals held back for long;
undated or malformed locks; -w. UNKNOWN: the command line is wrong.

--lock judges one lock, and that somebody sees it: held or not held is OK, overdue,
undated or malformed a WARNING, expired CRITICAL.

RANGE is [@][START:][END]: 10 alerts below 0 and above 10, 10: below 10, ~:10 above
10, 10:20 outside, @10:20 inside. An empty RANGE alerts never.`,
		// RunE refuses arguments, in the way of a plugin.
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
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringArrayVar(&f.URLs, "url", []string{"http://127.0.0.1:9481"},
		"`URL` of a daemon's web listener, with its path prefix; once for each replica")
	flags.VarP(rangeOf(&f.Warning, "0"), "warning", "w", "warn by the number of locks past their alert time (default 0)")
	flags.VarP(rangeOf(&f.Critical, ""), "critical", "c", "critical by the same number (default none)")
	flags.Var(rangeOf(&f.Undated, "0"), "undated", "warn by the number of undated and malformed locks, which are never removed automatically (default 0)")
	flags.StringVar(&f.Lock, "lock", "", "judge the lock `NAME` only")
	flags.UintVar(&f.forced, "forced-minutes", 60, "warn of forced unlocks for this many `MINUTES`; 0 for not at all")
	flags.UintVar(&f.hold, "hold-minutes", 5, "warn when removals are held back for longer than `MINUTES`; 0 for not at all")
	flags.UintVarP(&f.timeout, "timeout", "t", 10, "`SECONDS` for everything together")
	flags.CountVarP(&f.verbose, "verbose", "v", "also print each lock that counts, its holder, and each daemon with its holds")
	flags.StringVar(&f.CAFile, "ca-file", "", "PEM `FILE` of the authorities to trust; empty: those of the system")
	flags.StringVar(&f.CertFile, "cert-file", "", "PEM `FILE` of the client certificate; needs --key-file")
	flags.StringVar(&f.KeyFile, "key-file", "", "PEM `FILE` of the client certificate's key; needs --cert-file")
	flags.StringVar(&f.ServerName, "server-name", "", "`NAME` expected in the server's certificate; empty: the URL's host")
	flags.StringVar(&f.Username, "username", "", "`USER` for basic auth; needs --password-file")
	flags.StringVar(&f.PasswordFile, "password-file", "", "`FILE` that holds nothing but the password")
}

func (f *checkFlags) result(cmd *cobra.Command, args []string) check.Result {
	if err := f.settle(cmd, args); err != nil {
		return check.Misused(fmt.Errorf("%w; see unlocker check --help", err))
	}
	client, err := check.New(f.Options)
	if err != nil {
		return check.Misused(err)
	}
	answers := client.Ask(cmd.Context(), f.Rules)
	if cmd.Context().Err() != nil {
		return check.Misused(errors.New("interrupted"))
	}
	result := check.Judge(f.Rules, answers)
	if f.verbose == 0 {
		result.Long = nil
	}
	return result
}

// settle checks what flags say together, and turns numbers into times.
func (f *checkFlags) settle(cmd *cobra.Command, args []string) error {
	const day = 24 * 60
	given := cmd.Flags().Changed
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case given("lock") && f.Lock == "":
		return errors.New("--lock needs a name")
	case given("lock") && (given("warning") || given("critical") || given("undated")):
		return errors.New("--lock goes without --warning, --critical and --undated: they count locks")
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

// report prints a result, and returns its exit code where that is not 0.
func report(w io.Writer, r check.Result) error {
	if _, err := io.WriteString(w, r.String()); err != nil {
		return exitCode(check.Unknown)
	}
	if r.State != check.OK {
		return exitCode(r.State)
	}
	return nil
}

// rangeValue is a flag that holds a range.
type rangeValue struct{ *check.Range }

func rangeOf(r *check.Range, byDefault string) rangeValue {
	v := rangeValue{r}
	_ = v.Set(byDefault) // a literal
	return v
}

func (v rangeValue) Type() string { return "RANGE" }

func (v rangeValue) Set(s string) error {
	r, err := check.ParseRange(s)
	if err == nil {
		*v.Range = r
	}
	return err
}
