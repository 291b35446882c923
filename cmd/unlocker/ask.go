package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
)

func newAsk() *cobra.Command {
	format := output.Table
	cmd := &cobra.Command{
		Use:   "ask NAME",
		Short: "Ask the holder of a lock what it does now",
		Long: `Ask the process that holds a lock what it does now, and show the lock with its answer:
its stack and its status as of now. A live process answers within a second. The command
connects to etcd directly, with the configuration of the daemon, and works without one.

It writes one key with a lease under ask_prefix, which needs readwrite there. An answer
is not a renewal: it has no effect on when the lock is removed. A holder answers at most
once in 5 seconds, whoever asks, so that an answer may take that long.

The exit code is 1 if there is no answer within 5 seconds: the process has ended, hangs,
or cannot connect to etcd, or its client does not support questions, or may not read them.
It is also 1 if there is no such lock, or if etcd refuses the question.`,
		Example: `  unlocker ask billing/invoices
  unlocker ask billing/invoices -o json | jq -r '.fields[] | select(.name == "stack").value'`,
		Args:              oneName,
		ValidArgsFunction: completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				began := time.Now()
				d, err := a.Ask(cmd.Context(), name)
				if err != nil {
					return err
				}
				cmd.PrintErrf("its process answered within %s\n", time.Since(began).Round(time.Millisecond))
				return output.Lock(cmd.OutOrStdout(), format, d)
			})
		},
	}
	addAdminFlags(cmd, &format, "ask-prefix")
	return cmd
}
