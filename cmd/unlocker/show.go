package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
)

func newShow() *cobra.Command {
	format, daemon := output.Table, &explainer{}
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show one lock with all its fields",
		Long: `Show one lock: who holds it, since when, for what, and what is wrong with it. The
command connects to etcd directly, with the configuration of the daemon, and works
without one.

Whether and when the lock is removed, and what it waits for, only a daemon knows: it
has compared the holder's clock with its own and knows the holds. With --url, the
command asks a daemon and shows its explanation. The times in it are UTC.

NAME is without the prefix. The exit code is 1 if there is no such lock. It is also 1
if the daemon has no explanation; what etcd holds is shown all the same.`,
		Example: `  unlocker show billing/invoices
  unlocker show billing/invoices --url http://127.0.0.1:9481
  unlocker show billing/invoices -o wide    # long values in full
  unlocker show billing/invoices -o json | jq -r .uuid`,
		Args:              oneName,
		ValidArgsFunction: completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := daemon.prepare(); err != nil {
				return err
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				d, err := a.Show(cmd.Context(), name)
				if err != nil {
					return err
				}
				unexplained := daemon.ask(cmd.Context(), d.Explain)
				return errors.Join(output.Lock(cmd.OutOrStdout(), format, d), unexplained)
			})
		},
	}
	cmd.Flags().SortFlags = false
	daemon.add(cmd.Flags(), "`URL` of a daemon's web listener with its path prefix: show the daemon's explanation")
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
