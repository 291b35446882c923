// Command unlocker watches the locks that programs hold in etcd, tells people
// before one of them expires, and removes those that have.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/common/version"
	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

func main() {
	version.Version = cmp.Or(version.Version, moduleVersion())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, newRoot(), os.Args[1:])
	stop()
	os.Exit(code)
}

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // the command ran and failed
	exitUsage   = 2 // the command line or the configuration is wrong
)

// usageError marks an error that the caller of the command made.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode is the error of a command that has said itself what happened, and ends
// with a code of its own.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

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
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	// The error may quote what a server answered.
	_, _ = fmt.Fprintf(root.ErrOrStderr(), "unlocker: %s\n", terminal.Text(lock.Clip([]byte(err.Error()), maxError)))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "unlocker",
		Short: "Keep distributed mutexes in etcd safe to live with",
		Long: `unlocker watches the locks that programs hold in etcd, exports metrics so that
people are told before a lock expires, and removes the locks that have expired.

Every flag of serve is also a key of the configuration file and an environment
variable: --etcd-endpoints is etcd.endpoints and UNLOCKER_ETCD_ENDPOINTS. A flag
wins over the environment, the environment over the file, the file over the
default. list, show, unlock and config read the same configuration.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version.Print("unlocker"),
		Args:          cobra.NoArgs,
	}
	root.Flags().Bool("version", false, "print the version")
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(newServe(), newList(), newShow(), newUnlock(), newCheck(), newConfig(), newVersion())
	return root
}

// loadConfig reads the configuration for a command.
func loadConfig(cmd *cobra.Command) (config.Config, string, error) {
	c, source, err := config.Load(cmd.Flags())
	if err != nil {
		return c, source, usageError{err}
	}
	return c, source, nil
}
