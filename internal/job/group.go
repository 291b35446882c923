package job

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// notify relays signals, except those that the process was started to ignore, as by nohup.
func notify(to chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}

// endings are the signals that ask a process to end.
func endings() []os.Signal {
	return []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}
}

// group is the process group of the command, which leads it.
type group struct {
	signals  chan os.Signal
	terminal terminal
	// held reports whether the command may continue, according to the clocks.
	held func() bool

	pid    int
	states chan syscall.WaitStatus // of the command
	ending bool                    // a signal to end was passed on
}

// start starts the command. It must be called, and the command ends, while the goroutine is
// locked to its thread.
func (g *group) start(c *exec.Cmd) error {
	// Not after the start: what the command causes by its first words is passed on, and neither
	// ends nor stops this process alone.
	notify(g.signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
	if g.terminal.jobControl() {
		notify(g.signals, syscall.SIGTSTP)
	}
	c.Stdin, c.Stdout, c.Stderr, c.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attributes()
	if err := c.Start(); err != nil {
		return err
	}
	g.pid, g.states = c.Process.Pid, make(chan syscall.WaitStatus)
	_ = c.Process.Release() // wait4 reports stops, too, which c.Wait does not
	// Not before the start, since the command would inherit it.
	signal.Ignore(syscall.SIGTTOU)
	go g.observe()
	return nil
}

func (g *group) observe() {
	for {
		var state syscall.WaitStatus
		_, err := syscall.Wait4(g.pid, &state, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil: // not our child any more: exit status unknown, treat as killed
			state = syscall.WaitStatus(syscall.SIGKILL)
		}
		g.states <- state
		if !state.Stopped() {
			return
		}
	}
}

// wait passes signals on until the command has ended, and returns its exit status. When the
// context ends, the group gets TERM, and KILL after a time. What is left of a group that was to
// end gets the same time.
func (g *group) wait(until context.Context, killAfter time.Duration) (status int) {
	over := until.Done()
	var kill <-chan time.Time
	for {
		select {
		case state := <-g.states:
			if state.Stopped() {
				g.suspend(until, state.StopSignal())
				continue
			}
			g.terminal.takeBack(g.pid)
			if g.ending || over == nil || state.Signaled() {
				g.finish(kill, killAfter)
			}
			if state.Signaled() {
				return 128 + int(state.Signal())
			}
			return state.ExitStatus()
		case s := <-g.signals:
			g.relay(s.(syscall.Signal))
		case <-over:
			over, kill = nil, time.After(killAfter)
			g.end(syscall.SIGTERM)
		case <-kill:
			kill = nil
			g.signal(syscall.SIGKILL)
		}
	}
}

func (g *group) signal(s syscall.Signal) { _ = syscall.Kill(-g.pid, s) } // it may have ended

// end sends a signal to all processes, and lets those that were stopped receive it.
func (g *group) end(s syscall.Signal) {
	g.signal(s)
	g.signal(syscall.SIGCONT)
}

// relay passes a signal on: to all processes what a terminal would send to all.
func (g *group) relay(s syscall.Signal) {
	switch s {
	case syscall.SIGUSR1, syscall.SIGUSR2:
		_ = syscall.Kill(g.pid, s)
	case syscall.SIGTSTP, syscall.SIGCONT:
		g.signal(s)
	default:
		g.ending = true
		g.end(s)
	}
}

// lookInterval is how often the group is looked at: nothing tells when its last process ends.
const lookInterval = 20 * time.Millisecond

// finish waits until all processes have ended, and kills them when the time is over. kill is
// nil if it has not begun, or has passed.
func (g *group) finish(kill <-chan time.Time, killAfter time.Duration) {
	if kill == nil {
		kill = time.After(killAfter)
	}
	for g.exists() {
		select {
		case <-time.After(lookInterval):
		case <-kill:
			g.signal(syscall.SIGKILL)
			return
		}
	}
}

func (g *group) exists() bool {
	// As the first process of a container this one inherits the others, and has to reap them.
	for pid := 1; pid > 0; {
		pid, _ = syscall.Wait4(-g.pid, nil, syscall.WNOHANG, nil)
	}
	return !errors.Is(syscall.Kill(-g.pid, 0), syscall.ESRCH)
}

// suspend is called when the command was stopped. It does what the shell expects of a job: if
// the command needs the terminal and this process has it, the command gets it; otherwise all
// of the job is stopped until the shell continues it.
func (g *group) suspend(until context.Context, by syscall.Signal) {
	needs := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	switch foreground := g.terminal.foreground(); {
	case needs && (foreground == syscall.Getpgrp() || foreground == g.pid):
	case g.terminal.jobControl():
		needs = needs || foreground == g.pid
		_ = syscall.Kill(0, syscall.SIGSTOP)
		g.awaitContinue(until)
	default:
		return // the command was stopped by another process, which will continue it
	}
	if needs {
		g.terminal.give(g.pid)
	}
	if until.Err() == nil && g.held() {
		g.signal(syscall.SIGCONT)
	}
}

func (g *group) awaitContinue(until context.Context) {
	for {
		select {
		case s := <-g.signals:
			if s == syscall.SIGCONT {
				return
			}
			g.relay(s.(syscall.Signal))
		case <-until.Done():
			return
		}
	}
}
