package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/history"
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
	daemon.add(cmd.Flags(), "`URL` of a daemon's web listener with its path prefix: show the daemon's explanation")
	addAdminFlags(cmd, &format)
	return cmd
}

// withLock is withAdmin for the lock that an argument names.
func withLock(cmd *cobra.Command, arg string, f func(a *admin.Admin, name string) error) error {
	return withAdmin(cmd, func(a *admin.Admin) error {
		name, err := admin.ParseName(a.Prefix(), arg)
		if err != nil {
			return usageError(err)
		}
		return f(a, name)
	})
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("requires the name of one lock, not %d arguments", len(args))
	}
	return nil
}

// addClientFlags adds the flags with which a command authenticates daemons and itself.
func addClientFlags(flags *pflag.FlagSet, o *client.Options) {
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `FILE` with the certificate authorities trusted for --url; default: those of the system")
	flags.StringVar(&o.CertFile, "cert-file", "", "PEM `FILE` with the client certificate for --url; requires --key-file")
	flags.StringVar(&o.KeyFile, "key-file", "", "PEM `FILE` with the key of that certificate; requires --cert-file")
	flags.StringVar(&o.ServerName, "server-name", "", "`NAME` expected in the server certificate; default: the host of --url")
	flags.StringVar(&o.Username, "username", "", "`USER` for basic auth at --url; requires --password-file")
	flags.StringVar(&o.PasswordFile, "password-file", "", "`FILE` that contains the password and nothing else")
}

// explainer asks one daemon for explanations, if the command line names one.
type explainer struct {
	url     string
	options client.Options
	client  *client.Client // nil if none is to be asked
}

func (e *explainer) add(flags *pflag.FlagSet, usage string) {
	flags.StringVar(&e.url, "url", "", usage)
	addClientFlags(flags, &e.options)
}

// explainTimeout bounds what asking a daemon takes. Answering for one lock, the daemon
// waits for etcd.
const explainTimeout = 10 * time.Second

// prepare checks the flags and reads the files that they name.
func (e *explainer) prepare() (err error) {
	o := &e.options
	if e.url == "" {
		if o.CAFile+o.CertFile+o.KeyFile+o.ServerName+o.Username+o.PasswordFile != "" {
			return usageError(errors.New("--ca-file, --cert-file, --key-file, --server-name, --username and --password-file require --url; for etcd there are --etcd-… flags"))
		}
		return nil
	}
	o.URLs, o.Timeout = []string{e.url}, explainTimeout
	e.client, err = client.New(*o)
	return usageError(err)
}

// ask calls f with the daemon, if there is one.
func (e *explainer) ask(ctx context.Context, f func(context.Context, client.Daemon) error) (err error) {
	if e.client != nil {
		e.client.Each(ctx, func(ctx context.Context, _ int, d client.Daemon) { err = f(ctx, d) })
	}
	return err
}

func newHistory() *cobra.Command {
	const maxPeriods, maxTime = 1000, time.Hour // for the sake of etcd and of the memory
	b := history.Bounds{Renewals: 20}
	format, daemon := output.Table, &explainer{}
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show who held a lock before",
		Long: `Show who held a lock, the newest holder first, from the old revisions that etcd keeps
until it is compacted. The command connects to etcd directly, with the configuration
of the daemon, and works without one.

etcd keeps revisions, not times, and not who deletes a key. The times are those that
the holders wrote into the lock, by their clocks. HELD is exact only where a record of
a manual unlock or, with --url, a daemon knows when the period ended: otherwise it is
the range that follows from the times of the lock and of its next holder.

RENEWED counts the renewals. The table in -o wide has the least share of its patience
that one of the newest 20 left; -o json has all of these.

It reads backwards, one small request after the other, and ends after --limit holders
or after --timeout. The exit code is 1 if nobody held the lock as far as etcd knows,
and if the daemon at --url does not answer; what etcd has is shown all the same.`,
		Example: `  unlocker history billing/invoices
  unlocker history billing/invoices --url http://127.0.0.1:9481
  unlocker history billing/invoices --limit 5 -o wide
  unlocker history billing/invoices -o json | jq '.periods[].hostname'`,
		Args:              oneName,
		ValidArgsFunction: completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.Periods < 1 || b.Periods > maxPeriods {
				return usageError(fmt.Errorf("--limit must be 1 to %d", maxPeriods))
			}
			if b.Time < time.Second || b.Time > maxTime {
				return usageError(fmt.Errorf("--timeout must be 1s to %s", maxTime))
			}
			if err := daemon.prepare(); err != nil {
				return err
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				unexplained := daemon.ask(cmd.Context(), a.Observe)
				h, err := a.History(cmd.Context(), name, b)
				if err != nil {
					return err
				}
				if unexplained == nil {
					unexplained = daemon.ask(cmd.Context(), func(ctx context.Context, from client.Daemon) error { return admin.ExplainHistory(ctx, from, &h) })
				}
				err = output.History(cmd.OutOrStdout(), format, h)
				for _, note := range output.HistoryNotes(h, daemon.client != nil && unexplained == nil) {
					cmd.PrintErrln(note)
				}
				return errors.Join(err, unexplained)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&b.Periods, "limit", 20, "show at most this many holders, the newest")
	config.DurationVar(flags, &b.Time, "timeout", time.Minute, "read for at most this long")
	daemon.add(flags, "`URL` of a daemon's web listener with its path prefix: show what the daemon knows about the ends")
	addAdminFlags(cmd, &format, "audit-prefix")
	return cmd
}

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

func newDeadlocks() *cobra.Command {
	format := output.Table
	cmd := &cobra.Command{
		Use:   "deadlocks",
		Short: "Show holders that wait for each other",
		Long: `Show deadlocks: processes that wait for locks which only they hold. Which process holds
what, waits for what, and where its code took the lock, as etcd has it at one revision.
The command connects to etcd directly and works without a daemon. It breaks none: stop
one of the processes, or wait until the first of their locks expires.

Only waiters with a ticket under waiters_prefix are known, with what they say they hold.
The exit code is 1 if there is a deadlock.`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAdmin(cmd, func(a *admin.Admin) error {
				found, err := a.Deadlocks(cmd.Context())
				if err != nil {
					return err
				}
				if len(found) == 0 {
					cmd.PrintErrln("no deadlock under " + a.Prefix())
				} else {
					err = errPrinted
				}
				return errors.Join(output.Deadlocks(cmd.OutOrStdout(), format, time.Now(), found), err)
			})
		},
	}
	addAdminFlags(cmd, &format, "waiters-prefix")
	return cmd
}
