// Package job runs a command while it holds a lock: the command lock.
//
// Guaranteed: the command starts after the lock was taken, and its process group has ended,
// or was killed, before the lock is released or can expire. Where a person removes the lock,
// it is stopped as soon as that is seen.
//
// Not guaranteed: anything about processes that leave the process group of the command, about
// those that still run in it after the command ended by itself, or about the children of the
// command when this process is killed.
package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcd"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// Options are the options of Run. They must be valid.
type Options struct {
	// Name is the name of the lock, and Slots how many processes may hold it at once, 0 for one without slots.
	Name  string
	Slots int
	// Command is a program, looked up in PATH, and its arguments.
	Command []string
	// Timeout is how long to wait for the lock: not at all if 0, without limit if negative.
	Timeout time.Duration
	// AlertAfter is after how long the lock is overdue, and Patience how long it stays without
	// a renewal. The command is stopped after MaxHold. KillAfter is how long it has to end after
	// TERM: at most a third of Patience, so that there is time to renew before.
	AlertAfter, Patience, MaxHold, KillAfter time.Duration
	// AtLeast is how long the lock is held, also if the command ends before, unless a signal to end came.
	AtLeast time.Duration
	// Owner and Purpose are written into the lock.
	Owner, Purpose string
	// Waiting is called before a wait with a *mutex.HeldError, and while etcd does not answer with a cause, every minute,
	// unless it is nil. It may be called by several goroutines.
	Waiting func(error)
}

var (
	// ErrStopped says that the lock was lost, or held for MaxHold, and the command stopped.
	ErrStopped = errors.New("the command was stopped")
	// ErrNotReleased says that the command ended, and that the lock stays until it expires.
	ErrNotReleased = errors.New("the lock could not be released")
)

// Interrupted is the error of a wait for the lock that a signal ended.
type Interrupted struct{ Signal syscall.Signal }

func (e *Interrupted) Error() string { return "interrupted: " + e.Signal.String() }

// Is says that it is a context.Canceled, too, as the cause of a context.
func (e *Interrupted) Is(target error) bool { return target == context.Canceled }

// NotStarted is the error of a command that cannot be executed.
type NotStarted struct{ error }

func (e *NotStarted) Unwrap() error { return e.error }

// Run takes the lock, runs the command with the standard files and the environment of this
// process, releases the lock, and returns the exit status of the command as a shell does: 128
// and the signal if one has killed it. It handles the signals of the process meanwhile; ctx
// ends for those that came before, with an *Interrupted as its cause, and ends only the wait
// for the lock. It must not be called twice at a time.
//
// In addition to the errors above, there are *mutex.HeldError, and *mutex.LostError where the lock was
// lost and the command ended before that was seen. All others are those of etcd.
func Run(ctx context.Context, c config.Config, logger *slog.Logger, o Options) (status int, err error) {
	path, err := exec.LookPath(o.Command[0])
	if err != nil {
		return 0, &NotStarted{err}
	}
	if path, err = filepath.Abs(path); err != nil {
		return 0, &NotStarted{err}
	}
	// To fail fast gives errors with causes; mutex repeats.
	client, err := etcd.New(etcd.Options{Etcd: c.Etcd, FailFast: true, Logger: logger})
	if err != nil {
		return 0, err
	}
	defer func() { _ = client.Close() }()
	j := &job{Options: o, path: path, signals: make(chan os.Signal, 16)}
	locks, err := mutex.New(client.Client, mutex.Prefix(c.Prefix), mutex.AuditPrefix(c.AuditKeys()), mutex.AskPrefix(c.AskKeys()), mutex.WaitersPrefix(c.WaitersKeys()),
		mutex.Observe(nil), mutex.Observe(mutex.Log(logger)), mutex.Observe(j.observe), mutex.OnAsk(j.status), mutex.Owner(o.Owner), mutex.Purpose(o.Purpose),
		mutex.Expect(o.AlertAfter), mutex.Patience(o.Patience), mutex.Backtrace(false), mutex.Metadata("command", path),
		// Longer than MaxHold, so that the lock is held until the command has ended.
		mutex.KeepAlive(o.MaxHold+o.Patience))
	if err != nil {
		return 0, err
	}
	notify(j.signals, endings()...)
	l, err := j.take(ctx, locks, c.Etcd.DialTimeout+c.Etcd.RequestTimeout)
	switch {
	case err == nil:
		return j.hold(l)
	case errors.Is(err, mutex.ErrHeld) || errors.As(err, new(*Interrupted)):
		return 0, err
	}
	explained := client.Explain(err, etcd.ReadWrite, c.Prefix)
	if errors.Is(err, mutex.ErrUnreachable) && !errors.As(explained, new(*etcd.NoConnection)) {
		return 0, explained // which names the endpoints
	}
	return 0, fmt.Errorf("etcd at %s: %w", strings.Join(c.Etcd.Endpoints, ", "), explained)
}

type job struct {
	Options
	path    string
	signals chan os.Signal
	child   atomic.Pointer[child] // nil while it does not run
	ending  bool                  // a signal to end came while the command ran
}

type child struct {
	pid   int
	began time.Time
}

// status is what a question about the lock is answered with. It names the program without its arguments, which may be
// secret.
func (j *job) status() string {
	c := j.child.Load()
	if c == nil {
		return j.path + " is not running"
	}
	return fmt.Sprintf("%s, pid %d: running for %s%s", j.path, c.pid, time.Since(c.began).Round(time.Second), usage(c.pid))
}

// usage says how much CPU time a process and the children that it has waited for have used, and its state, as ps does. It
// is empty where there is no such process, or no /proc.
func usage(pid int) string {
	const ticks = 100 // of a second; see proc_pid_stat(5)
	p, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	s, err := p.Stat()
	if err != nil {
		return ""
	}
	used := time.Duration(s.UTime+s.STime) + time.Duration(s.CUTime+s.CSTime)
	return fmt.Sprintf(", %s of CPU time, state %s", used*time.Second/ticks, s.State)
}

func (j *job) observe(e mutex.Event) {
	if e.Kind == mutex.EventWaiting && j.Waiting != nil && j.child.Load() == nil {
		j.Waiting(e.Err)
	}
}

// take takes the lock. etcd must answer once within the timeout, or without one within a time; later it may be away for
// longer.
func (j *job) take(ctx context.Context, locks *mutex.Client, answer time.Duration) (l *mutex.Lock, err error) {
	ctx, stop := j.interruptible(ctx)
	defer func() {
		stop()
		if interrupted, is := errors.AsType[*Interrupted](context.Cause(ctx)); is {
			if l != nil {
				_ = l.Unlock(ctx) // one attempt; it expires otherwise
			}
			l, err = nil, interrupted
		}
	}()
	waiting := ctx
	if j.Timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, j.Timeout)
		defer cancel()
	}
	first, cancel := context.WithTimeout(waiting, max(answer, j.Timeout))
	defer cancel()
	var opts []mutex.Option
	if j.Slots > 0 {
		opts = append(opts, mutex.Slots(j.Slots))
	}
	l, err = locks.TryLock(first, j.Name, opts...)
	if errors.Is(err, mutex.ErrHeld) && j.Timeout != 0 {
		l, err = locks.Lock(waiting, j.Name, opts...)
	}
	if held, is := errors.AsType[*mutex.HeldError](err); is && held.Err != nil {
		held.Err = fmt.Errorf("not released within %s", j.Timeout)
	}
	return l, err
}

// interruptible returns a context that a signal ends, too, with an *Interrupted as its cause.
// Until stop returns, all signals go there.
func (j *job) interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			select {
			case s := <-j.signals:
				if slices.Contains(endings(), s) {
					cancel(&Interrupted{s.(syscall.Signal)})
				}
			case <-ctx.Done():
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

func (j *job) hold(l *mutex.Lock) (status int, err error) {
	until, cancel := j.until(l)
	defer cancel()
	least := time.After(j.AtLeast)
	status, err = j.run(until, l)
	stopped := context.Cause(until)
	ctx, stop := j.interruptible(context.Background())
	defer stop()
	if err == nil && !j.ending {
		select {
		case <-least:
		case <-ctx.Done():
		case <-until.Done():
		}
	}
	if stopped != nil {
		if lost, is := errors.AsType[*mutex.LostError](stopped); is {
			lost.Removal(ctx) // who removed it is not looked for after Unlock
		}
		stop() // one attempt, since others may hold the lock by now
	}
	released := l.Unlock(ctx)
	switch {
	case stopped != nil && err == nil:
		return status, fmt.Errorf("%w: %w", ErrStopped, stopped)
	case err != nil || released == nil || errors.Is(released, mutex.ErrLost):
		return status, errors.Join(err, released)
	}
	return status, fmt.Errorf("%w, and stays until it expires: %w", ErrNotReleased, released)
}

// until returns a context that ends when the command has to stop: the lock is lost, has been
// held for MaxHold, or expires soon.
func (j *job) until(l *mutex.Lock) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeoutCause(l.Context(context.Background()), j.MaxHold,
		fmt.Errorf("lock %q was held for the maximum of %s", l.Name(), j.MaxHold))
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for left := j.left(l); left > 0 && ctx.Err() == nil; left = j.left(l) {
			select {
			case <-time.After(left):
			case <-ctx.Done():
			}
		}
		cancel(cmp.Or(l.Held(), fmt.Errorf("lock %q could not be renewed, and counts as lost from %s on", j.Name, l.Deadline().UTC().Format(time.RFC3339))))
	}()
	return ctx, func() {
		cancel(nil)
		stop()
	}
}

// left is how long the command may continue without a renewal, so that it can be killed before the
// lock may be removed.
func (j *job) left(l *mutex.Lock) time.Duration { return time.Until(l.Deadline()) - j.KillAfter }

func (j *job) run(until context.Context, l *mutex.Lock) (status int, err error) {
	// The kernel kills the command when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tty, _ := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	defer func() { _ = unix.Close(tty) }() // fails if there is none
	g := &group{signals: j.signals, terminal: terminal(tty), held: func() bool { return l.Held() == nil && j.left(l) > 0 }}
	// Of a variable the last counts: the lock of a command around this one is not that of the command in it.
	env := append(os.Environ(), "UNLOCKER_LOCK_NAME="+l.Name(), "UNLOCKER_LOCK_UUID="+l.UUID(),
		"UNLOCKER_FENCING_TOKEN="+strconv.FormatInt(l.Token(), 10))
	if err := g.start(&exec.Cmd{Path: j.path, Args: j.Command, Env: env}); err != nil {
		return 0, &NotStarted{fmt.Errorf("%s: %w", j.path, err)}
	}
	j.child.Store(&child{g.pid, time.Now()})
	defer j.child.Store(nil) // another process may get its pid during AtLeast
	status = g.wait(until, j.KillAfter)
	j.ending = g.ending
	return status, nil
}

// terminal is the descriptor of the controlling terminal of the process, negative if there is none. Its processes are
// in groups, of which one has the foreground: it may read, and gets the signals of the
// keyboard. The command begins in the background, since others in a pipeline with this process
// may need the terminal, and gets the foreground when it reads from the terminal or changes its
// modes. Until then this process passes the signals of the keyboard on.
type terminal int

// foreground returns the process group that has the terminal, or 0.
func (t terminal) foreground() int {
	pgid, err := unix.IoctlGetInt(int(t), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return pgid
}

// jobControl reports whether there is a shell that notices when this process is stopped, and
// continues it: not if the process leads the session, as with ssh -t or in a container.
func (t terminal) jobControl() bool {
	session, _ := unix.Getsid(0)
	return t >= 0 && session != syscall.Getpgrp()
}

// give gives the terminal to a process group, if this one has it.
func (t terminal) give(pgid int) {
	if t.foreground() == syscall.Getpgrp() {
		_ = unix.IoctlSetPointerInt(int(t), unix.TIOCSPGRP, pgid)
	}
}

// takeBack takes the terminal from a process group that has it.
func (t terminal) takeBack(pgid int) {
	if t.foreground() == pgid && pgid != 0 {
		_ = unix.IoctlSetPointerInt(int(t), unix.TIOCSPGRP, syscall.Getpgrp())
	}
}
