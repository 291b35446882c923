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
		Short: "Show one lock with all its fields",
		Long: `Show one lock: who holds it, since when and for what, and when it is removed. The
command connects to etcd directly, with the configuration of the daemon, and works
without one. It does not know the holds and the clock observations of a daemon, so
the daemon may remove the lock later than shown here.

NAME is without the prefix. The exit code is 1 if there is no such lock.`,
		Example: `  unlocker show billing/invoices
  unlocker show billing/invoices -o wide    # long values in full
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

// withLock is withAdmin for the lock that an argument names.
func withLock(cmd *cobra.Command, arg string, f func(a *admin.Admin, name string) error) error {
	return withAdmin(cmd, func(a *admin.Admin) error {
		name, err := admin.ParseName(a.Prefix(), arg)
		if err != nil {
			return usageError{err}
		}
		return f(a, name)
	})
}

// oneName requires one argument, the name of a lock.
func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("requires the name of one lock, not %d arguments", len(args))
	}
	return nil
}
