package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
)

// listNative is list --native.
func listNative(cmd *cobra.Command, o output.Options) error {
	for _, flag := range []string{"state", "hostname", "match", "sort", "limit", "watch", "url"} {
		if cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s cannot be used with --native", flag)}
		}
	}
	return withAdmin(cmd, func(a *admin.Admin) error {
		list, err := a.Native(cmd.Context())
		if errors.Is(err, admin.ErrNoNativePrefixes) {
			return usageError{err}
		}
		for _, p := range list.Prefixes {
			remarkNative(cmd, p)
		}
		return errors.Join(output.Native(cmd.OutOrStdout(), o, list), err)
	})
}

// remarkNative prints to stderr why there is nothing below a prefix, or not everything.
func remarkNative(cmd *cobra.Command, p api.NativePrefix) {
	left := p.MoreHolders
	for _, h := range p.Holders {
		left += h.MoreWaiters
	}
	switch {
	case left > 0:
		cmd.PrintErrf("under %s: %d locks, or keys that wait, are not shown\n", p.Prefix, left)
	case p.Held+p.Waiting == 0 && p.Other > 0:
		cmd.PrintErrf("no native locks under %s: its %d keys are not named NAME/LEASE\n", p.Prefix, p.Other)
	case p.Held+p.Waiting == 0:
		cmd.PrintErrln("no native locks under " + p.Prefix)
	}
}
