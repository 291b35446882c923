package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

func newUnlock() *cobra.Command {
	var uuid string
	var yes bool
	format := output.Table
	cmd := &cobra.Command{
		Use:   "unlock NAME --uuid UUID",
		Short: "Remove one lock by force",
		Long: `Remove a lock although its owner did not release it. The lock is shown first, on
stderr, and a question asked; then all its keys go in one transaction, if its uuid
still is the one given. A lock that another has taken meanwhile stays. No daemon is
needed, and none hinders it: the command works during every hold, and where etcd is
out of space.

Its owner may still be working, and is not told. Only a resource that compares
fencing tokens is safe from it.

Exit with 0 when the lock was removed, with 1 when it was not: there is none, its
uuid is another, you said no, etcd refused or did not answer.`,
		Example: `  unlocker show billing/invoices
  unlocker unlock billing/invoices --uuid 0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab
  unlocker unlock billing/invoices --uuid "$uuid" --yes -o json > removed.json`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("uuid") {
				return usageError{errors.New("--uuid is needed: see unlocker show")}
			}
			if !yes && !isTerminal(cmd.InOrStdin()) {
				return usageError{errors.New("--yes is needed where stdin is no terminal")}
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				removed, err := a.Unlock(cmd.Context(), name, terminal.Unquote(uuid), confirm(cmd, yes))
				if other := (*admin.OtherHolder)(nil); errors.As(err, &other) {
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
	flags.StringVar(&uuid, "uuid", "", "the uuid under which the lock is held, as show prints it")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask")
	addAdminFlags(cmd, &format)
	return cmd
}

// confirm shows the lock, whole, and asks unless yes was said already.
func confirm(cmd *cobra.Command, yes bool) func(admin.Detail) error {
	return func(d admin.Detail) error {
		if err := output.Lock(cmd.ErrOrStderr(), output.Wide, d); err != nil || yes {
			return err
		}
		cmd.PrintErr("\n" + output.Question(d))
		return ask(cmd.Context(), cmd.InOrStdin())
	}
}

// ask waits for an answer, or for the context: a read from a terminal does not end by
// itself, and the process soon does.
func ask(ctx context.Context, in io.Reader) error {
	answers := make(chan string, 1)
	go func() {
		const longest = 100
		answer, _ := bufio.NewReader(io.LimitReader(in, longest)).ReadString('\n') // none is ""
		answers <- answer
	}()
	select {
	case answer := <-answers:
		return accept(answer)
	case <-ctx.Done():
		return fmt.Errorf("%w: nothing is removed", admin.ErrInterrupted)
	}
}

func accept(answer string) error {
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if answer == "" {
		return errors.New("no answer: nothing is removed; --yes is needed where stdin is no terminal")
	}
	return errors.New("nothing is removed")
}

// isTerminal takes a device like /dev/null for one as well, which gives no answer.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
