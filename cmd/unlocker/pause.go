package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func newPause() *cobra.Command {
	var match, reason string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "pause [--match PATTERN] --for DURATION --reason WHY",
		Short: "Stop automatic removals for a while",
		Long: `Stop the automatic removal of all locks, or of those whose names match a pattern, for
a while. Every daemon obeys within a second and keeps watching; nothing has to be
restarted. The pause ends by itself, or with unlocker resume. A pause of the same
pattern replaces it. Locks can still be acquired, renewed, released, and removed by
unlocker unlock.

The command connects to etcd directly, with the configuration of the daemon, and
writes one key with a lease under pause_prefix: who paused, why and until when. At
NOSPACE etcd grants no lease, so the command fails; but then no lock is removed
automatically either.

The exit code is 0 if it is paused, and 1 if etcd refused or did not answer.`,
		Example: `  unlocker pause --for 2h --reason 'network maintenance, OPS-4711'
  unlocker pause --match 'deploy/**' --for 30m --reason 'debugging deploy/web'`,
		Args: noArguments(": --match names the locks"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []string{"for", "reason"} {
				if !cmd.Flags().Changed(flag) {
					return usageError(fmt.Errorf("--%s is required", flag))
				}
			}
			if err := validMatch(cmd, match, admin.ValidatePause(match, lasts, reason)); err != nil {
				return err
			}
			return withAdmin(cmd, func(a *admin.Admin) error {
				r, err := a.Pause(cmd.Context(), admin.Who(), match, lasts, reason)
				if err != nil {
					return err
				}
				return output.Paused(cmd.OutOrStdout(), a.Prefix(), r)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&match, "match", "", "pause only locks whose name matches this `PATTERN`: * does not match a slash, ** does")
	config.DurationVar(flags, &lasts, "for", 0, "for how long, such as 30m, 2h or 2d; 10s to 7d (required)")
	flags.StringVar(&reason, "reason", "", "`WHY`, shown wherever a lock is kept by the pause (required)")
	addConfigFlags(flags, "pause-prefix")
	cmd.AddCommand(newPauseList())
	return cmd
}

func newPauseList() *cobra.Command {
	format := output.Table
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the pauses of automatic removals",
		Long: `List the pauses in force, that of all locks first: of which locks, until when, by
whom and why. The command connects to etcd directly, with the configuration of the
daemon. A record under pause_prefix that no daemon can read keeps all locks, and has no
end: if it is nothing else's, delete it with etcdctl del.`,
		Example: `  unlocker pause list
  unlocker pause list -o json | jq '.pauses[] | select(.by == "ada@laptop")'`,
		Args: noArguments(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withAdmin(cmd, func(a *admin.Admin) error {
				all, err := a.Pauses(cmd.Context())
				if err != nil {
					return err
				}
				if len(all) == 0 {
					cmd.PrintErrln("nothing is paused under " + a.Prefix())
				}
				return output.Pauses(cmd.OutOrStdout(), format, time.Now(), all)
			})
		},
	}
	addAdminFlags(cmd, &format, "pause-prefix")
	return cmd
}

func newResume() *cobra.Command {
	var match, brake string
	var all bool
	cmd := &cobra.Command{
		Use:   "resume [--match PATTERN | --all | --brake NAME]",
		Short: "End a pause of automatic removals",
		Long: `End the pause of all locks or, with --match, that of a pattern. Every daemon obeys
within a second: locks that are due by then are removed at once.

Where there are others, the pause of all locks, and no other, ends only with --all.

With --brake it ends no pause, but what the brake counts against the locks of a name: a
lock that it keeps is removed. Records under audit_prefix tell the daemons.

The command prints whose pause it ended, and the pauses that remain. The exit code is 0
if the pause ended, and 1 if there was none, if it is not clear which one is meant, or
if etcd refused or did not answer.`,
		Example: `  unlocker resume
  unlocker resume --match 'deploy/**'
  unlocker resume --brake nightly/backup`,
		Args: noArguments(": --match names the pattern of the pause"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := validMatch(cmd, match, admin.ValidateMatch(match)); err != nil {
				return err
			}
			braked := cmd.Flags().Changed("brake")
			if all && (match != "" || braked) || match != "" && braked {
				return usageError(errors.New("--all, --match and --brake exclude each other: --all ends the pause of all locks"))
			}
			if err := protocol.ValidateName(brake); braked && err != nil {
				return usageError(fmt.Errorf("--brake: %w", err))
			}
			return withAdmin(cmd, func(a *admin.Admin) error {
				if braked {
					if err := a.EndBrake(cmd.Context(), brake); err != nil {
						return err
					}
					_, err := fmt.Fprintf(cmd.OutOrStdout(), "resumed: the brake keeps no lock %s under %s\n", terminal.Quote(brake), a.Prefix())
					return err
				}
				ended, remaining, err := a.Resume(cmd.Context(), match, all)
				if err == nil {
					err = output.Resumed(cmd.OutOrStdout(), a.Prefix(), ended)
				}
				return errors.Join(output.Pauses(cmd.OutOrStdout(), output.Table, time.Now(), remaining), err)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&match, "match", "", "end the pause of this `PATTERN`, as it was given to pause")
	flags.BoolVar(&all, "all", false, "end the pause of all locks, also where there are others")
	flags.StringVar(&brake, "brake", "", "have the locks of this `NAME` removed again that the brake keeps")
	addConfigFlags(flags, "pause-prefix", "audit-prefix")
	return cmd
}

// validMatch returns a usage error if err is not nil, or if --match is empty, which must not mean
// all locks.
func validMatch(cmd *cobra.Command, match string, err error) error {
	if match == "" && cmd.Flags().Changed("match") {
		err = errors.New("--match: must not be empty: leave it out for all locks")
	}
	return usageError(err)
}
