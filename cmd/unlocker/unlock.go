package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

func newUnlock() *cobra.Command {
	var uuid, reason string
	var yes bool
	format := output.Table
	cmd := &cobra.Command{
		Use:   "unlock NAME --uuid UUID [--reason WHY]",
		Short: "Force-unlock one lock",
		Long: `Remove a lock that its holder did not release. The command prints the lock to stderr
and asks for confirmation. It then deletes all keys of the lock in one transaction,
but only if the lock is still held under the given uuid. It connects to etcd
directly, works without a daemon and during every hold, and works when etcd has run
out of space.

The same transaction writes a record under audit_prefix: who (your user and host), when,
why (--reason), and the lock. The daemons log, count and show it; it ends after a day.
Where etcd refuses the record (out of space, or no right to write there), the command
asks whether to remove the lock without one, and with --yes says so and continues.

The holder may still be working and is not notified. Only a resource that compares
fencing tokens is protected from it.

The exit code is 0 if the lock was removed. It is 1 if it was not: there is no such
lock, it is held under another uuid, you declined, or etcd refused or did not answer.`,
		Example: `  unlocker show billing/invoices
  unlocker unlock billing/invoices --uuid 0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab \
    --reason "worker-17 was replaced, OPS-1234"
  unlocker unlock billing/invoices --uuid "$uuid" --yes -o json > removed.json`,
		Args:              oneName,
		ValidArgsFunction: completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("uuid") {
				return usageError(errors.New("--uuid is required: see unlocker show"))
			}
			if len(reason) > records.MaxText || !utf8.ValidString(reason) {
				return usageError(fmt.Errorf("--reason must be UTF-8 of at most %d bytes", records.MaxText))
			}
			if !yes && !isTerminal(cmd.InOrStdin()) {
				return usageError(errors.New("--yes is required when stdin is not a terminal"))
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				removed, err := a.Unlock(cmd.Context(), name, terminal.Unquote(uuid), reason, confirm(cmd, yes))
				if other, is := errors.AsType[*admin.OtherHolder](err); is {
					return errors.Join(output.Lock(cmd.ErrOrStderr(), output.Table, other.Lock), err)
				}
				if err != nil {
					return err
				}
				return output.Removed(cmd.OutOrStdout(), format, removed)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&uuid, "uuid", "", "uuid under which the lock is held, as printed by show (required)")
	flags.StringVar(&reason, "reason", "", "why, for the record, which every reader of the daemon's log or API can see")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation; required when stdin is not a terminal")
	addAdminFlags(cmd, &format, "audit-prefix")
	return cmd
}

// confirm prints the whole lock and whether a record can be left, and asks unless yes is set.
func confirm(cmd *cobra.Command, yes bool) func(admin.Detail, error) error {
	return func(d admin.Detail, unrecorded error) error {
		err := output.Lock(cmd.ErrOrStderr(), output.Wide, d)
		if unrecorded != nil {
			cmd.PrintErrln("\n" + output.Unrecorded(unrecorded))
		}
		if err != nil || yes {
			return err
		}
		cmd.PrintErr("\n" + output.Question(d, unrecorded == nil))
		return ask(cmd.Context(), cmd.InOrStdin())
	}
}

// ask waits for an answer or for the end of the context. In the latter case the read
// continues until the process exits: a read from a terminal cannot be interrupted.
func ask(ctx context.Context, in io.Reader) error {
	answers := make(chan string, 1)
	go func() {
		const longest = 100
		answer, _ := bufio.NewReader(io.LimitReader(in, longest)).ReadString('\n') // "" if there is no answer
		answers <- answer
	}()
	select {
	case answer := <-answers:
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return nil
		}
		if answer == "" {
			return errors.New("no answer: nothing was removed; --yes is required when stdin is not a terminal")
		}
		return errors.New("nothing was removed")
	case <-ctx.Done():
		return fmt.Errorf("%w: nothing was removed", admin.ErrInterrupted)
	}
}

// isTerminal reports whether in is a character device. This includes /dev/null, which
// gives no answer.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
