package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
)

func newList() *cobra.Command {
	var filter admin.Filter
	format := output.Table
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks",
		Long: `List the locks as etcd holds them now, ordered by name. No daemon is needed: the
command speaks to etcd itself, with the daemon's configuration.

HELD is the time since the lock was taken, ALERT and UNLOCK are how far alert_at
and auto_unlock_at are away; all by the owner's clock against that of this host.
Names with characters that a terminal would not show as what they are come in
quotes; show and unlock take them so.`,
		Example: `  unlocker list --state overdue,expired
  unlocker list --match 'billing/**' -o wide
  unlocker list -o json | jq '.locks[] | select(.owner == "billing").name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := filter.Validate(); err != nil {
				return usageError{err}
			}
			return withAdmin(cmd, func(a *admin.Admin) error {
				l, err := a.List(cmd.Context(), filter)
				if err != nil {
					return err
				}
				remark(cmd, l)
				return output.List(cmd.OutOrStdout(), format, l.At, l.Locks())
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&filter.States, "state", nil, strings.Join(api.States(), ", ")+"; comma separated")
	flags.StringVar(&filter.Hostname, "hostname", "", "of locks held on this host only")
	flags.StringVar(&filter.Match, "match", "", "of locks whose name fits this pattern only: * stops at a slash, ** does not")
	flags.IntVar(&filter.Limit, "limit", 0, "print the first so many; 0 for all")
	addAdminFlags(cmd, &format)
	complete(cmd, "state", api.States())
	return cmd
}

// remark says what the output does not.
func remark(cmd *cobra.Command, l *admin.Listing) {
	var words string
	switch {
	case l.Total == 0:
		words = "no locks under " + l.Prefix
	case l.Matched == 0:
		words = fmt.Sprintf("none of the %d locks under %s is wanted", l.Total, l.Prefix)
	case l.Len() < l.Matched:
		words = fmt.Sprintf("the first %d of %d locks", l.Len(), l.Matched)
	default:
		return
	}
	cmd.PrintErrln(words)
}

// addAdminFlags adds what list, show and unlock have in common. The keys that do not
// matter to them are accepted as well, so that one set of flags does for all commands.
func addAdminFlags(cmd *cobra.Command, format *output.Format) {
	flags := cmd.Flags()
	flags.VarP(format, "output", "o", strings.Join(output.Formats(), ", "))
	complete(cmd, "output", output.Formats())
	keys := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Flags(keys)
	keys.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && f.Name != "prefix" && !strings.HasPrefix(f.Name, "etcd-")
		flags.AddFlag(f)
	})
}

// complete offers values to the shell. The flag is there.
func complete(cmd *cobra.Command, flag string, values []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// withAdmin gives f access to the locks, with the configuration of a command.
func withAdmin(cmd *cobra.Command, f func(*admin.Admin) error) (err error) {
	c, _, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	// What goes wrong is told by the error; more only to those who ask for it.
	level := slog.LevelWarn
	if c.Log.Level == "debug" {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	a, err := admin.Open(c, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	return f(a)
}
