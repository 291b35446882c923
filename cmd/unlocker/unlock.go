package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/records"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

type unlockMany struct {
	what   api.UnlockMany
	count  int
	daemon explainer
}

func newUnlock() *cobra.Command {
	var uuid string
	var yes bool
	many := &unlockMany{}
	what, format := &many.what, output.Table
	cmd := &cobra.Command{
		Use:   "unlock {NAME --uuid UUID | --match PATTERN [--silent]} [--reason WHY]",
		Short: "Force-unlock one lock, or many",
		Long: `Remove a lock that its holder did not release. The command prints the lock to stderr
and asks for confirmation. It then deletes all keys of the lock in one transaction,
but only if the lock is still held under the given uuid. It connects to etcd
directly, works without a daemon and during every hold, and works when etcd has run
out of space.

The same transaction writes a record under audit_prefix: who (your user and host), when,
why (--reason), and the lock. The daemons log, count and show it; it ends after a day.
Where etcd refuses the record (out of space, or no right to write there), the command
asks whether to remove the lock without one, and with --yes says so and continues.

The holder may still be working and is not notified. Only a resource that compares
fencing tokens is protected from it.

With --match it removes all locks whose names match, each as above. It prints them to
stderr and asks for their number. --yes asks nothing, and requires --count: where another
number matches, nothing is removed. --silent selects only locks whose holders have missed
three renewals or more, as the daemon at --url has seen. A lock that was released, or taken
again, since it was printed stays; with --silent also one that was renewed, or modified
otherwise. At most 50 a second are removed after the first 100, and stdout has a line for
each. Ctrl-C stops after those that have begun. So does an etcd that fails.

The exit code is 0 if the lock was removed, or all of them. It is 1 if one was not: there
is no such lock, it is held under another uuid, you declined, or etcd refused or did not
answer.`,
		Example: `  unlocker show billing/invoices
  unlocker unlock billing/invoices --uuid 0b4f7e9a-1c2d-4e3f-8a9b-0123456789ab \
    --reason "worker-17 was replaced, OPS-1234"
  unlocker unlock billing/invoices --uuid "$uuid" --yes -o json > removed.json
  unlocker unlock --match 'nightly/**' --silent --url http://127.0.0.1:9481 --reason OPS-1234`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("match") {
				return noArguments(": --match names the locks")(cmd, args)
			}
			return oneName(cmd, args)
		},
		ValidArgsFunction: completeName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := many.validate(cmd, yes); err != nil {
				return usageError(err)
			}
			if !yes && !isTerminal(cmd.InOrStdin()) {
				return usageError(errors.New("--yes is required when stdin is not a terminal"))
			}
			if cmd.Flags().Changed("match") {
				return many.run(cmd, yes, format)
			}
			return withLock(cmd, args[0], func(a *admin.Admin, name string) error {
				removed, err := a.Unlock(cmd.Context(), name, terminal.Unquote(uuid), what.Reason, confirm(cmd, yes))
				if other, is := errors.AsType[*admin.OtherHolder](err); is {
					return errors.Join(output.Lock(cmd.ErrOrStderr(), output.Table, other.Lock), err)
				}
				if err != nil {
					return err
				}
				return output.Removed(cmd.OutOrStdout(), format, removed)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&uuid, "uuid", "", "uuid under which the lock is held, as printed by show (required with NAME)")
	flags.StringVar(&what.Match, "match", "", "remove all locks whose name matches this `PATTERN`: * does not match a slash, ** does")
	flags.BoolVar(&what.Silent, "silent", false, "only those whose holders have missed three renewals or more, as the daemon at --url has seen")
	flags.IntVar(&many.count, "count", 0, "with --match: remove nothing unless this many match")
	flags.StringVar(&what.Reason, "reason", "", "why, for the record, which every reader of the daemon's log or API can see")
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation; required when stdin is not a terminal")
	many.daemon.add(flags, "`URL` of a daemon's web listener with its path prefix, for --silent")
	addAdminFlags(cmd, &format, "audit-prefix")
	return cmd
}

// validate returns the error of flags that exclude each other, or that are missing.
func (u *unlockMany) validate(cmd *cobra.Command, yes bool) error {
	given, many := cmd.Flags().Changed, cmd.Flags().Changed("match")
	switch reason := u.what.Reason; {
	case !many && (u.what.Silent || given("count") || given("url")):
		return errors.New("--silent, --count and --url require --match")
	case !many && !given("uuid"):
		return errors.New("--uuid is required: see unlocker show")
	case len(reason) > records.MaxText || !utf8.ValidString(reason):
		return fmt.Errorf("--reason must be UTF-8 of at most %d bytes", records.MaxText)
	case !many:
		return nil
	case given("uuid"):
		return errors.New("--uuid cannot be used with --match")
	case strings.TrimSpace(reason) == "":
		return errors.New("--reason is required with --match")
	case yes && !given("count"):
		return errors.New("--yes requires --count with --match")
	case u.what.Silent != (u.daemon.url != ""):
		return errors.New("--silent and --url require each other")
	case u.what.Match == "":
		return errors.New("--match must not be empty: '**' matches all locks")
	}
	return admin.ValidateMatch(u.what.Match)
}

func (u *unlockMany) run(cmd *cobra.Command, yes bool, format output.Format) error {
	if err := u.daemon.prepare(); err != nil {
		return err
	}
	return withAdmin(cmd, func(a *admin.Admin) error {
		filter := admin.Filter{Query: api.Query{Match: u.what.Match}}
		if err := u.daemon.ask(cmd.Context(), filter.OnlySilent); err != nil {
			return err
		}
		var failed error
		counts, err := a.UnlockMany(cmd.Context(), filter, u.what, u.confirm(cmd, yes), func(l api.Unlocked) {
			failed = cmp.Or(failed, output.Unlocked(cmd.OutOrStdout(), format, l))
		})
		if err == nil {
			cmd.PrintErrf("%d locks removed\n", counts.Removed)
		}
		return errors.Join(failed, err)
	})
}

// confirm prints the locks and whether records can be left, and asks for their number unless yes is set.
func (u *unlockMany) confirm(cmd *cobra.Command, yes bool) func(api.Selection, error) error {
	return func(s api.Selection, unrecorded error) error {
		n := len(s.Locks)
		err := output.List(cmd.ErrOrStderr(), output.Options{Format: output.Wide, At: time.Now()}, slices.Values(s.Locks))
		if unrecorded != nil {
			cmd.PrintErrln("\n" + output.Unrecorded(unrecorded))
		}
		if s.Left > 0 {
			cmd.PrintErrf("%d more match and stay: nobody holds them, or their names are too long\n", s.Left)
		}
		if cmd.Flags().Changed("count") && n != u.count {
			return errors.Join(err, fmt.Errorf("%d locks match, not %d: nothing was removed", n, u.count))
		}
		if err != nil || yes {
			return err
		}
		cmd.PrintErrf("\nRemove these %d locks? Their holders may still be working. Their number, to confirm: ", n)
		return ask(cmd.Context(), cmd.InOrStdin(), strconv.Itoa(n))
	}
}

// confirm prints the whole lock and whether a record can be left, and asks unless yes is set.
func confirm(cmd *cobra.Command, yes bool) func(admin.Detail, error) error {
	return func(d admin.Detail, unrecorded error) error {
		err := output.Lock(cmd.ErrOrStderr(), output.Wide, d)
		if unrecorded != nil {
			cmd.PrintErrln("\n" + output.Unrecorded(unrecorded))
		}
		if err != nil || yes {
			return err
		}
		cmd.PrintErr("\n" + output.Question(d, unrecorded == nil))
		return ask(cmd.Context(), cmd.InOrStdin(), "y", "yes")
	}
}

// ask waits for one of the answers that agree, in lower case, or for the end of the context. In the latter case the read
// continues until the process exits: a read from a terminal cannot be interrupted.
func ask(ctx context.Context, in io.Reader, agree ...string) error {
	answers := make(chan string, 1)
	go func() {
		const longest = 100
		answer, _ := bufio.NewReader(io.LimitReader(in, longest)).ReadString('\n') // "" if there is no answer
		answers <- answer
	}()
	select {
	case answer := <-answers:
		if slices.Contains(agree, strings.ToLower(strings.TrimSpace(answer))) {
			return nil
		}
		if answer == "" {
			return errors.New("no answer: nothing was removed; --yes is required when stdin is not a terminal")
		}
		return errors.New("nothing was removed")
	case <-ctx.Done():
		return fmt.Errorf("%w: nothing was removed", admin.ErrInterrupted)
	}
}

// isTerminal reports whether in is a character device. This includes /dev/null, which
// gives no answer.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
