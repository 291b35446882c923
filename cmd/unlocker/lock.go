package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/job"
	"github.com/etcd-unlocker/unlocker/mutex"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Exit codes of lock, besides that of its command: those of flock, sysexits.h and shells.
const (
	exitConflict      = 1   // unless --conflict-exit-code
	exitLockUsage     = 64  // EX_USAGE
	exitEtcd          = 69  // EX_UNAVAILABLE
	exitLost          = 122 // the lock was lost, or held for too long
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the number of the signal
)

const maxLockDuration = 30 * 24 * time.Hour

type lockFlags struct {
	job.Options
	conflict     int
	now, quietly bool
}

// seconds is a duration that has seconds where it has no unit, as flock has them.
type seconds struct{ pflag.Value }

func (s seconds) Set(text string) error {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		text += "s"
	}
	return s.Value.Set(text)
}

func newLock() *cobra.Command {
	f := &lockFlags{}
	cmd := &cobra.Command{
		Use:   "lock NAME [flags] -- COMMAND [ARGUMENT]...",
		Short: "Run a command while holding a lock",
		Long: `Take a lock, run a command, and release the lock. The lock is renewed as long as this
process lives. If it is killed, or its host dies, the lock is removed --patience later.

The command is executed directly, without a shell. It gets the files and the environment
of this process, with an UNLOCKER_ETCD_PASSWORD that is there (a password file avoids it), and
  UNLOCKER_LOCK_NAME      the name of the lock, with --slots that of its slot
  UNLOCKER_LOCK_UUID      of this acquisition, in etcd, in logs and for unlocker unlock
  UNLOCKER_FENCING_TOKEN  a number that grows with each acquisition

It runs in a process group of its own, to which SIGTERM, SIGINT, SIGHUP and SIGQUIT are
passed on; SIGUSR1 and SIGUSR2 are passed on to the command alone. On a terminal, it can be
used and suspended like any other job.

If the lock is lost, cannot be renewed in time, or was held for --max-hold, the process
group gets SIGTERM, and SIGKILL --kill-after later: before another process can get the
lock, unless it was removed by hand. An outage of etcd that lasts for a part of --patience
does not stop the command.

With --slots up to so many processes hold NAME at once. Each of them has a slot, which is a
lock of its own: NAME/0, NAME/1 and so on. Give the same number on all hosts.

-n, -w and -E are those of flock. For cron jobs that overlap use -n -q -E 0. A job that is
quick, on hosts whose clocks differ, runs once with -n --at-least 50s.

The lock names the program, but not its arguments, which may be secret: use --purpose.
unlocker ask NAME is answered with how long it has been running, its CPU time and state.

Exit codes:
  0-255  that of the command; 128 and the number of the signal if one killed it
  1      another process holds the lock, and --timeout has passed: --conflict-exit-code
  64     the command line or the configuration is wrong
  69     etcd cannot be reached, refuses, or does not answer
  122    the lock was lost, or was held for --max-hold, and the command stopped
  126    the command cannot be executed
  127    the command was not found
  128+n  signal n ended the wait for the lock`,
		Example: `  unlocker lock reports/nightly -- /usr/local/bin/nightly-report --all
  unlocker lock billing/invoices -n -q -E 0 -- run-invoices   # not while another does
  unlocker lock render --slots 4 -- render-next               # four of them at a time
  unlocker lock export --timeout 10m --alert-after 1h -- sh -c 'pg_dump | gzip > dump.gz'`,
		// RunE refuses arguments, with an exit code of its own.
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeCommand,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.code(f.run(cmd, args)) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return f.code(0, misused(err)) })
	f.add(cmd)
	return cmd
}

func (f *lockFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.Timeout = -1
	flags.VarP(seconds{config.Duration(&f.Timeout)}, "timeout", "w", "wait at most this long for the lock, and for etcd; in seconds without a unit; 0 does not wait (default no limit; for etcd, its dial and request timeout)")
	flags.Lookup("timeout").DefValue = ""
	flags.BoolVarP(&f.now, "nonblock", "n", false, "do not wait: --timeout 0")
	flags.IntVarP(&f.conflict, "conflict-exit-code", "E", exitConflict, "exit code if another process holds the lock")
	flags.BoolVarP(&f.quietly, "quiet", "q", false, "print nothing if another process holds the lock")
	flags.IntVar(&f.Slots, "slots", 0, "how many processes may hold NAME at once; each has a lock of its own, NAME/0 and so on (default one, which holds NAME)")
	config.DurationVar(flags, &f.AtLeast, "at-least", 0, "hold the lock at least this long, also if the command ends before")
	config.DurationVar(flags, &f.AlertAfter, "alert-after", 10*time.Minute, "the lock is overdue after this time; at most half of --max-hold by default")
	config.DurationVar(flags, &f.Patience, "patience", 2*time.Minute, "how long the lock stays without a renewal")
	config.DurationVar(flags, &f.MaxHold, "max-hold", 24*time.Hour, "stop the command after this time")
	config.DurationVar(flags, &f.KillAfter, "kill-after", 5*time.Second, "time between SIGTERM and SIGKILL; at most a third of --patience")
	flags.StringVar(&f.Purpose, "purpose", "", "what the lock is for, shown to those who wait or are alerted")
	flags.StringVar(&f.Owner, "owner", "", "name of the service (default the name of the command)")
	addConfigFlags(flags, "ask-prefix", "waiters-prefix")
}

func (f *lockFlags) run(cmd *cobra.Command, args []string) (status int, err error) {
	if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
		return 0, misused(errors.New("requires NAME -- COMMAND"))
	}
	if err := f.settle(cmd); err != nil {
		return 0, misused(err)
	}
	c, _, err := loadConfig(cmd)
	if err != nil {
		return 0, err
	}
	if f.Name, err = admin.ParseName(c.Prefix, args[0]); err != nil {
		return 0, usageError(err)
	}
	f.Command = args[1:]
	if f.Owner == "" {
		f.Owner = filepath.Base(f.Command[0])
	}
	if isTerminal(os.Stderr) && !f.quietly {
		f.Waiting = func(why error) { cmd.PrintErrln(line(why) + "; waiting, Ctrl-C ends that") }
	}
	return job.Run(cmd.Context(), c, clientLogger(cmd, c), f.Options)
}

func misused(err error) error { return usageError(fmt.Errorf("%w; see unlocker lock --help", err)) }

// settle checks the flags, and fits those that were not given to the others.
func (f *lockFlags) settle(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	for _, d := range []struct {
		name         string
		value, least time.Duration
	}{
		{"alert-after", f.AlertAfter, time.Second},
		{"patience", f.Patience, 3 * time.Second},
		{"max-hold", f.MaxHold, time.Second},
		{"kill-after", f.KillAfter, 0},
		{"timeout", max(f.Timeout, 0), 0},
		{"at-least", f.AtLeast, 0},
	} {
		if d.value < d.least || d.value > maxLockDuration {
			return fmt.Errorf("--%s must be %s to %s", d.name, d.least, maxLockDuration)
		}
	}
	if !given("alert-after") {
		f.AlertAfter = min(f.AlertAfter, f.MaxHold/2)
	}
	if !given("kill-after") {
		f.KillAfter = min(f.KillAfter, f.Patience/3)
	}
	switch {
	case f.now && given("timeout"):
		return errors.New("give either --nonblock or --timeout")
	case given("timeout") && f.Timeout < 0:
		return errors.New("--timeout must not be negative")
	case f.conflict < 0 || f.conflict > 255:
		return errors.New("--conflict-exit-code must be 0 to 255")
	case given("slots") && (f.Slots < 1 || f.Slots > protocol.MaxSlots):
		return fmt.Errorf("--slots must be 1 to %d", protocol.MaxSlots)
	case f.AtLeast > f.MaxHold:
		return errors.New("--at-least must be at most --max-hold")
	case f.AlertAfter > f.MaxHold:
		return errors.New("--alert-after must be at most --max-hold")
	case f.KillAfter > f.Patience/3:
		return errors.New("--kill-after must be at most a third of --patience")
	}
	if f.now {
		f.Timeout = 0
	}
	return nil
}

func (f *lockFlags) code(status int, err error) error {
	interrupted, coded := (*job.Interrupted)(nil), codedError{}
	switch {
	case err == nil && status == 0:
		return nil
	case err == nil:
		return exitCode(status)
	case errors.As(err, &coded) && coded.code == exitUsage:
		return codedError{err, exitLockUsage}
	case errors.Is(err, mutex.ErrHeld) && f.quietly:
		return exitCode(f.conflict)
	case errors.Is(err, mutex.ErrHeld):
		return codedError{err, f.conflict}
	case errors.Is(err, job.ErrStopped), errors.Is(err, mutex.ErrLost):
		return codedError{err, exitLost}
	case errors.Is(err, job.ErrNotReleased):
		return codedError{err, status}
	case errors.As(err, &interrupted):
		return codedError{err, exitSignal + int(interrupted.Signal)}
	case errors.As(err, new(*job.NotStarted)) && (errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)):
		return codedError{err, exitNotFound}
	case errors.As(err, new(*job.NotStarted)):
		return codedError{err, exitNotExecutable}
	}
	return codedError{err, exitEtcd}
}
