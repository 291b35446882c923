package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/history"
)

// Limits of the flags of history, for the sake of etcd and of the memory.
const (
	maxPeriods      = 1000
	maxHistoryTime  = time.Hour
	historyRenewals = 20
)

func newHistory() *cobra.Command {
	var b history.Bounds
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
			if b.Time < time.Second || b.Time > maxHistoryTime {
				return usageError(fmt.Errorf("--timeout must be 1s to %s", maxHistoryTime))
			}
			if err := daemon.prepare(); err != nil {
				return err
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				h, err := a.History(cmd.Context(), name, b)
				if err != nil {
					return err
				}
				unexplained := daemon.ask(cmd.Context(), h.Explain)
				err = output.History(cmd.OutOrStdout(), format, h)
				for _, note := range output.HistoryNotes(h) {
					cmd.PrintErrln(note)
				}
				return errors.Join(err, unexplained)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	b.Renewals = historyRenewals
	flags.IntVar(&b.Periods, "limit", 20, "show at most this many holders, the newest")
	flags.DurationVar(&b.Time, "timeout", time.Minute, "read for at most this long")
	daemon.add(flags, "`URL` of a daemon's web listener with its path prefix: show what the daemon knows about the ends")
	addAdminFlags(cmd, &format, "audit-prefix")
	return cmd
}
