package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

type listRun struct {
	filter                    admin.Filter
	format                    output.Format
	daemon                    explainer
	follow, noHeaders, native bool
	silent                    bool
}

func newList() *cobra.Command {
	l := &listRun{format: output.Table}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks, once or as they change",
		Long: `List the locks in etcd, ordered by name or as --sort says. The command connects to
etcd directly, with the configuration of the daemon, and works without one.

HELD is the time since locked_at. ALERT and UNLOCK are the times until or since
alert_at and auto_unlock_at. They are by the holder's clock, and corrected, as UNLOCK
says, where that is known to be off: --url asks a daemon, and --watch observes renewals.
Otherwise a lock that is renewed is called expired only once its deadline has passed by
its patience again: its holder's clock may be slow by that much.

With --url, -o wide, json and yaml have the explanation of a daemon for all locks but
the held ones: whether a lock is removed, what it waits for, and until when (UTC). They
also say whether the holder is alive: how often it renews, as the daemon has seen, and how
many renewals it has missed since the last one. --silent lists only the locks of those that
have missed three or more: they are dead, stopped or cut off, not slow.

With --watch the list is kept current until Ctrl-C. On a terminal it is drawn again on the
alternate screen, as many locks as fit: the arrows and the page keys scroll, / and a text
lists only the names that contain it until Esc, and q ends. A narrow terminal shows no
HOSTNAME, then no OWNER, HELD and ALERT. Otherwise, and with -o json or jsonpath, all locks
are printed, and then a line for each lock that changes, its state by time included. A
lock that does not exist any more has the state gone. What -o json prints are the events
lock and gone of the daemon's API. If etcd does not answer, the list stays as it was, the
screen or stderr says so, and the command continues when etcd answers again.

--sort urgency lists the locks that need attention first: expired, overdue, malformed,
undated, orphaned, and then held locks by alert_at, with those that expired and that a
policy keeps. held lists the oldest locks first, alert and unlock the earliest times.

With --native the locks and elections of etcd's own clients below native_prefixes are
listed: concurrency.Mutex and Election, etcdctl lock. A lock has a line for the key that
holds it, and for each key that waits, in the order in which they get it. They are only
shown: nothing of unlocker removes them.

-o jsonpath takes the templates of kubectl, on what -o json prints. Text that is not safe
to print is quoted and escaped there too. Colors are for terminals, and NO_COLOR turns
them off.

A name that is not safe to print on a terminal is quoted and escaped. show and
unlock accept names in this form.`,
		Example: `  unlocker list --state overdue,expired
  unlocker list --match 'billing/**' -o wide
  unlocker list --owner billing -o name
  unlocker list --state expired -o wide --url http://127.0.0.1:9481
  unlocker list --watch --sort urgency --url http://127.0.0.1:9481
  unlocker list --silent -o wide --url http://127.0.0.1:9481
  unlocker list --native --native-prefixes /locks/
  unlocker list -o jsonpath='{range .locks[*]}{.name}{"\t"}{.uuid}{"\n"}{end}'
  unlocker list -o json | jq '.locks[] | select(.purpose != null).name'`,
		Args: noArguments(": show NAME shows one lock, --match lists those that match a pattern"),
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&l.filter.States, "state", nil, "list only locks in these states, comma separated: "+strings.Join(api.States(), ", "))
	flags.StringVar(&l.filter.Hostname, "hostname", "", "list only locks held on this host")
	flags.StringVar(&l.filter.Owner, "owner", "", "list only locks of this owner, the service that holds them")
	flags.BoolVar(&l.silent, "silent", false, "list only locks whose holders have missed three renewals or more, as the daemon at --url has seen")
	flags.StringVar(&l.filter.Match, "match", "", "list only locks whose name matches this pattern: * does not match a slash, ** does")
	flags.StringVar(&l.filter.Sort, "sort", admin.Orders()[0], "order of the locks: "+strings.Join(admin.Orders(), ", "))
	flags.IntVar(&l.filter.Limit, "limit", 0, "list at most this many locks, the first in the order; 0 lists all")
	flags.BoolVarP(&l.follow, "watch", "w", false, "keep the list current until Ctrl-C")
	flags.BoolVar(&l.noHeaders, "no-headers", false, "print no titles above a table")
	flags.BoolVar(&l.native, "native", false, "list the locks of etcd's own clients below native_prefixes instead")
	l.daemon.add(flags, "`URL` of a daemon's web listener with its path prefix: go by its clocks, and list its explanations")
	addAdminFlags(cmd, &l.format, "native-prefixes")
	complete(cmd, "state", api.States())
	complete(cmd, "sort", admin.Orders())
	return cmd
}

func (l *listRun) run(cmd *cobra.Command) error {
	options := output.Options{Format: l.format, NoHeaders: l.noHeaders}
	if l.native {
		return listNative(cmd, options)
	}
	if err := l.filter.Validate(); err != nil {
		return usageError(err)
	}
	if l.follow && (l.filter.Limit > 0 || !l.format.Watches()) {
		return usageError(errors.New("--watch cannot be used with --limit, -o yaml or -o name"))
	}
	if err := l.daemon.prepare(); err != nil {
		return err
	}
	if l.silent && (l.daemon.client == nil || l.follow) {
		return usageError(errors.New("--silent requires --url, and cannot be used with --watch"))
	}
	return withAdmin(cmd, func(a *admin.Admin) error {
		unexplained := l.daemon.ask(cmd.Context(), a.Observe)
		if l.follow {
			if unexplained == nil {
				unexplained = watch(cmd, a, l, options)
			}
			return unexplained
		}
		if l.silent {
			if err := cmp.Or(unexplained, l.daemon.ask(cmd.Context(), l.filter.OnlySilent)); err != nil {
				return err
			}
		}
		found, err := a.List(cmd.Context(), l.filter)
		if err != nil {
			return err
		}
		remark(cmd, found)
		if found.Uncounted != nil && l.format != output.Name {
			cmd.PrintErrln("WAITERS may be more: " + terminal.Text(api.ErrorText(found.Uncounted)))
		}
		options.Explained = l.daemon.client != nil && unexplained == nil
		if options.Explained && l.format != output.Name {
			unexplained = l.daemon.ask(cmd.Context(), found.Explain)
		}
		options.At = found.At
		return errors.Join(output.List(cmd.OutOrStdout(), options, found.Locks()), unexplained)
	})
}

// remark prints to stderr why the output is empty or incomplete.
func remark(cmd *cobra.Command, l *admin.Listing) {
	switch {
	case l.Total == 0:
		cmd.PrintErrln("no locks under " + l.Prefix)
	case l.Matched == 0:
		cmd.PrintErrf("none of the %d locks under %s match\n", l.Total, l.Prefix)
	case l.Len() < l.Matched:
		cmd.PrintErrf("showing the first %d of %d locks\n", l.Len(), l.Matched)
	}
}

// addAdminFlags adds the flags that list, show and unlock share.
func addAdminFlags(cmd *cobra.Command, format *output.Format, shown ...string) {
	cmd.Flags().VarP(format, "output", "o", "output format: "+output.Choices())
	complete(cmd, "output", output.Completions())
	addConfigFlags(cmd.Flags(), shown...)
}

// addConfigFlags adds the flags of all keys of the configuration, so that the flags of serve can
// be passed to the command. Its help shows those that apply to all commands, and shown.
func addConfigFlags(flags *pflag.FlagSet, shown ...string) {
	shown = append(shown, "config", "prefix")
	flags.SortFlags = false // those of the command come first
	keys := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Flags(keys)
	keys.VisitAll(func(f *pflag.Flag) {
		f.Hidden = !slices.Contains(shown, f.Name) && !strings.HasPrefix(f.Name, "etcd-")
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

func listNative(cmd *cobra.Command, o output.Options) error {
	for _, flag := range []string{"state", "hostname", "owner", "silent", "match", "sort", "limit", "watch", "url"} {
		if cmd.Flags().Changed(flag) {
			return usageError(fmt.Errorf("--%s cannot be used with --native", flag))
		}
	}
	return withAdmin(cmd, func(a *admin.Admin) error {
		list, err := a.Native(cmd.Context())
		if errors.Is(err, admin.ErrNoNativePrefixes) {
			return usageError(err)
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
