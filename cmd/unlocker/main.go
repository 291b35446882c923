// Command unlocker alerts on overdue etcd locks and removes expired ones.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/job"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func main() {
	// A binary that the Makefile did not build: go install records the version of the module, go build that of the commit.
	if info, ok := debug.ReadBuildInfo(); ok {
		version.Version = cmp.Or(version.Version, info.Main.Version)
	}
	signals := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as it is in the background of a script
		signals = append(signals, os.Interrupt)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	received := make(chan os.Signal, 1)
	signal.Notify(received, signals...)
	go func() { cancel(&job.Interrupted{Signal: (<-received).(syscall.Signal)}) }()
	os.Exit(run(ctx, newRoot(), os.Args[1:]))
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // the command ran and failed
	exitUsage   = 2 // the command line or the configuration is wrong
)

// codedError is an error with an exit code of its own.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// usageError is the error of a wrong command line or configuration; nil for nil.
func usageError(err error) error {
	if err == nil {
		return nil
	}
	return codedError{err, exitUsage}
}

var errPrinted = errors.New("the result is printed")

// exitCode is the error of a command that has printed its result.
func exitCode(code int) error { return codedError{errPrinted, code} }

// maxError is the maximum length of a printed error, in bytes.
const maxError = 4 << 10

// run executes the command line and turns its error into an exit code.
func run(ctx context.Context, root *cobra.Command, args []string) int {
	completeTree(root)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if !errors.Is(err, errPrinted) {
		_, _ = fmt.Fprintln(root.ErrOrStderr(), line(err))
	}
	coded := codedError{code: exitFailure}
	errors.As(err, &coded)
	return coded.code
}

// line is how an error is printed. It may quote the answer of a server, or a lock.
func line(err error) string {
	return "unlocker: " + terminal.Text(protocol.Clip([]byte(err.Error()), maxError))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "unlocker",
		Short: "Alert on overdue etcd locks and remove expired ones",
		Long: `unlocker watches the locks that programs hold in etcd. It exports metrics from
which Prometheus alerts on locks that are held too long, and it removes the locks
that have expired.

Run the daemon with serve. The other commands work without it, except check and
drill, which ask daemons.

Every flag of serve is also a configuration key and an environment variable:
--etcd-endpoints, etcd.endpoints and UNLOCKER_ETCD_ENDPOINTS are the same setting.
A flag overrides the environment, the environment overrides the file, and the file
overrides the default. All commands but check read the same configuration.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version.Print("unlocker"),
	}
	root.Flags().Bool("version", false, "print the version")
	root.SetVersionTemplate("{{.Version}}\n")
	// The help of flags may be long.
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", ".FlagUsagesWrapped 100 "))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	root.AddCommand(newServe(), newList(), newShow(), newHistory(), newAsk(), newDeadlocks(), newUnlock(), newLock(), newPause(), newResume(), newCheck(), newDrill(), newConfig(), newVersion())
	return root
}

func loadConfig(cmd *cobra.Command) (config.Config, string, error) {
	c, source, err := config.Load(cmd.Flags())
	return c, source, usageError(err)
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Print("unlocker"))
			return err
		},
	}
}

// completeName offers the names of locks as the first argument. Without etcd it offers none: a
// shell has no place for an error.
func completeName(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	const namesTimeout = 2 * time.Second // limits how long a shell waits for names
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := cmd.Context()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, namesTimeout)
		defer cancel()
	}
	var names []string
	_ = withAdmin(cmd, func(a *admin.Admin) (err error) {
		names, err = a.Names(ctx, begin)
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeCommand offers the names of locks, and then what the shell offers for a command.
func completeCommand(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return completeName(cmd, args, begin)
}

// completeTree adds cobra's own commands and makes all commands strict: wrong arguments
// are usage errors, and a command that only groups others refuses unknown ones.
func completeTree(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	strict(root)
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" { // of commands only
			cmd.Args = func(cmd *cobra.Command, args []string) error {
				if _, rest, err := cmd.Root().Find(args); err != nil || len(rest) > 0 {
					return usageError(fmt.Errorf("unknown help topic %q; see unlocker --help", strings.Join(args, " ")))
				}
				return nil
			}
		}
	}
}

func strict(cmd *cobra.Command) {
	if !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		cmd.Args = noCommand
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// noCommand refuses arguments of a command that only groups others: cobra suggests none to a command
// that has a check of its arguments.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	const typos = 2
	cmd.SuggestionsMinimumDistance = typos
	hint := ""
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		hint = " (did you mean " + strings.Join(similar, " or ") + "?)"
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
}

// noArguments refuses arguments. hint says what to use instead of one.
func noArguments(hint string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf("unexpected argument %q%s", args[0], hint)
	}
}

// fileHint is for commands that read the configuration.
const fileHint = ": --config names the configuration file"
