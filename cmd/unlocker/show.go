package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
)

func newShow() *cobra.Command {
	format := output.Table
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one lock, with all that etcd holds of it",
		Long: `Show one lock as etcd holds it now: who holds it, since when and what for, and what
comes next. No daemon is needed: the command speaks to etcd itself, with the
daemon's configuration. What it says of the future follows from that configuration
alone: it does not know of holds, nor of what a daemon has measured.

NAME goes without the prefix. Exit with 1 where there is no such lock.`,
		Example: `  unlocker show billing/invoices
  unlocker show billing/invoices -o wide    # a long backtrace to its end
  unlocker show billing/invoices -o json | jq -r .uuid`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				d, err := a.Show(cmd.Context(), name)
				if err != nil {
					return err
				}
				return output.Lock(cmd.OutOrStdout(), format, d)
			})
		},
	}
	cmd.Flags().SortFlags = false
	addAdminFlags(cmd, &format)
	return cmd
}

// withLock is withAdmin for a lock that an argument names.
func withLock(cmd *cobra.Command, arg string, f func(a *admin.Admin, name string) error) error {
	return withAdmin(cmd, func(a *admin.Admin) error {
		name, err := admin.ParseName(a.Prefix(), arg)
		if err != nil {
			return usageError{err}
		}
		return f(a, name)
	})
}

// oneName wants one argument, the lock's name.
func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("wants the name of one lock, not %d arguments", len(args))
	}
	return nil
}
