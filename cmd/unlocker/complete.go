package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

// namesTimeout limits how long a shell waits for names.
const namesTimeout = 2 * time.Second

// completeName offers the names of locks as the first argument. Without etcd it offers none: a
// shell has no place for an error.
func completeName(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, _, err := config.Load(cmd.Flags())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a, err := admin.Open(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := cmd.Context()
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, namesTimeout)
		defer cancel()
	}
	names, _ := a.Names(ctx, begin)
	_ = a.Close()
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeCommand offers the names of locks, and then what the shell offers for a command.
func completeCommand(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return completeName(cmd, args, begin)
}
