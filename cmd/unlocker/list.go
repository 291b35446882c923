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
	format, daemon := output.Table, &explainer{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks",
		Long: `List the locks in etcd, ordered by name. The command connects to etcd directly, with
the configuration of the daemon, and works without one.

HELD is the time since locked_at. ALERT and UNLOCK are the times until or since
alert_at and auto_unlock_at. The holder's clock set them, and they are compared with
the clock of this host.

With --url, -o wide, json and yaml have the explanation of a daemon for all locks but
the held ones: whether a lock is removed, what it waits for, and until when (UTC).

A name that is not safe to print on a terminal is quoted and escaped. show and
unlock accept names in this form.`,
		Example: `  unlocker list --state overdue,expired
  unlocker list --match 'billing/**' -o wide
  unlocker list --state expired -o wide --url http://127.0.0.1:9481
  unlocker list -o json | jq '.locks[] | select(.owner == "billing").name'`,
		Args: noArguments(": show NAME shows one lock, --match lists those that match a pattern"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := filter.Validate(); err != nil {
				return usageError{err}
			}
			if daemon.url != "" && (format == output.Table || format == output.Name) {
				return usageError{errors.New("--url requires -o wide, json or yaml")}
			}
			if err := daemon.prepare(); err != nil {
				return err
			}
			return withAdmin(cmd, func(a *admin.Admin) error {
				l, err := a.List(cmd.Context(), filter)
				if err != nil {
					return err
				}
				remark(cmd, l)
				unexplained := daemon.ask(cmd.Context(), l.Explain)
				return errors.Join(output.List(cmd.OutOrStdout(), format, l.At, l.Locks(), l.Explained()), unexplained)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&filter.States, "state", nil, "list only locks in these states, comma separated: "+strings.Join(api.States(), ", "))
	flags.StringVar(&filter.Hostname, "hostname", "", "list only locks held on this host")
	flags.StringVar(&filter.Match, "match", "", "list only locks whose name matches this pattern: * does not match a slash, ** does")
	flags.IntVar(&filter.Limit, "limit", 0, "list at most this many locks, the first by name; 0 lists all")
	daemon.add(flags, "`URL` of a daemon's web listener with its path prefix: list the daemon's explanations")
	addAdminFlags(cmd, &format)
	complete(cmd, "state", api.States())
	return cmd
}

// remark prints to stderr why the output is empty or incomplete.
func remark(cmd *cobra.Command, l *admin.Listing) {
	var words string
	switch {
	case l.Total == 0:
		words = "no locks under " + l.Prefix
	case l.Matched == 0:
		words = fmt.Sprintf("none of the %d locks under %s match", l.Total, l.Prefix)
	case l.Len() < l.Matched:
		words = fmt.Sprintf("showing the first %d of %d locks", l.Len(), l.Matched)
	default:
		return
	}
	cmd.PrintErrln(words)
}

// addAdminFlags adds the flags that list, show and unlock share. They accept all keys of
// the configuration, so that the flags of serve can be passed to them, and show those
// that apply.
func addAdminFlags(cmd *cobra.Command, format *output.Format) {
	flags := cmd.Flags()
	flags.VarP(format, "output", "o", "output format: "+strings.Join(output.Formats(), ", "))
	complete(cmd, "output", output.Formats())
	keys := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Flags(keys)
	keys.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && f.Name != "prefix" && !strings.HasPrefix(f.Name, "etcd-")
		flags.AddFlag(f)
	})
}

// complete offers the values of a flag to the shell. The flag must exist.
func complete(cmd *cobra.Command, flag string, values []string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// withAdmin calls f with access to the locks, using the configuration of the command.
func withAdmin(cmd *cobra.Command, f func(*admin.Admin) error) (err error) {
	c, _, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	a, err := admin.Open(c, clientLogger(cmd, c))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	err = f(a)
	if a.CredentialsIgnored() {
		cmd.PrintErrln("etcd has authentication disabled: etcd.username is ignored")
	}
	return err
}

// clientLogger returns the logger of the etcd client of a command: for debugging only, since
// the errors say what failed.
func clientLogger(cmd *cobra.Command, c config.Config) *slog.Logger {
	if c.Log.Level != "debug" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
