package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/admin/output"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// watch shows the locks, and what changes, until it is interrupted. While the daemon does not answer, what it has
// said of clocks stays.
func watch(cmd *cobra.Command, a *admin.Admin, l *listRun, o output.Options) error {
	const observeInterval = 5 * time.Second // how often a daemon is asked for the clocks that it has observed
	list, err := a.Watch(l.filter)
	if err != nil {
		return err
	}
	parent, stop := context.WithCancel(cmd.Context())
	g, ctx := errgroup.WithContext(parent)
	g.Go(func() error { return list.Run(ctx) })
	g.Go(func() error {
		for ctx.Err() == nil {
			_ = l.daemon.ask(ctx, a.Observe)
			select {
			case <-time.After(observeInterval):
			case <-ctx.Done():
			}
		}
		return nil
	})
	g.Go(func() error {
		defer stop()
		select {
		case <-list.Changed():
		case <-ctx.Done():
			return nil
		}
		file, isFile := cmd.OutOrStdout().(*os.File)
		if isFile && o.Format.Draws() && terminal.Moves(file) {
			return watchScreen(ctx, file, list, o)
		}
		return watchLines(ctx, cmd, list, o)
	})
	return g.Wait()
}

// watchLines prints a line for each change, and says on stderr when it may miss some.
func watchLines(ctx context.Context, cmd *cobra.Command, list *admin.Watch, o output.Options) error {
	lines := output.NewLines(cmd.OutOrStdout(), o)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	told := ""
	for {
		began := time.Now()
		changes := list.Changes(ctx)
		rested := time.After(idleShare * time.Since(began))
		_, trouble := list.Trouble() // not before: a listing that ends it may have changes
		if words := troubleWords(trouble); words != told {
			if told = words; words == "" {
				words = "watching again"
			}
			cmd.PrintErrf("%s unlocker: %s\n", terminal.Time(time.Now()), words)
		}
		if err := lines.Print(list.Now(), changes); err != nil {
			return err
		}
		select {
		case <-rested:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-list.Changed():
		case <-second.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func troubleWords(err error) string {
	if err == nil {
		return ""
	}
	return "watch failed; relisting: " + terminal.Text(protocol.Clip([]byte(err.Error()), maxError))
}

const (
	// frameInterval is the minimum time between two frames that changes cause.
	frameInterval = 100 * time.Millisecond
	// keyInterval is how often it is looked for keys.
	keyInterval = 50 * time.Millisecond
	// idleShare is how much longer than the last reading of the list took, or the last frame, it
	// rests, at least.
	idleShare = 20
)

// display is the list on the alternate screen of a terminal.
type display struct {
	out     *os.File
	list    *admin.Watch
	options output.Options
	screen  *terminal.Screen
	signals chan os.Signal
	// skip is how many locks are above the screen. Only those whose name contains search are listed; typing
	// reports whether it is being typed.
	skip   int
	search string
	typing bool
}

// watchScreen draws the list each second and after changes.
func watchScreen(ctx context.Context, out *os.File, list *admin.Watch, o output.Options) (err error) {
	d := &display{out: out, list: list, options: o, signals: make(chan os.Signal, 8)}
	signal.Notify(d.signals, syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(d.signals)
	d.screen, err = terminal.OpenScreen(out)
	defer func() { err = errors.Join(err, d.screen.Close()) }()
	for again := err == nil; again && err == nil; {
		began := time.Now()
		if err = d.draw(ctx); err == nil {
			again, err = d.wait(ctx, max(frameInterval, idleShare*time.Since(began)))
		}
	}
	return err
}

func (d *display) draw(ctx context.Context) error {
	columns, rows, _ := terminal.Size(d.out)
	d.list.Find(d.search)
	note, view := "", d.list.View(ctx, d.skip+rows)
	d.skip = max(0, min(d.skip, view.Matched-1))
	if d.skip > 0 {
		view.Sort += fmt.Sprintf(", %d above", d.skip)
	}
	if view.Trouble != nil {
		note = fmt.Sprintf("as it was %s ago: %s", terminal.Duration(time.Since(view.Since)), troubleWords(view.Trouble))
	}
	frame := output.Frame(d.options, view, d.skip, note, terminal.Colored(d.out), columns, rows)
	if d.typing || d.search != "" {
		frame[0] = terminal.Truncate("/"+terminal.Text(d.search)+"  "+frame[0], columns)
	}
	return d.screen.Draw(frame)
}

// wait waits for a reason to draw again, and reports whether there is one. Only a signal or a key is one
// before the screen has rested.
func (d *display) wait(ctx context.Context, rest time.Duration) (again bool, err error) {
	var changed <-chan struct{}
	rested, late := time.After(rest), time.After(max(rest, time.Second))
	keys := time.NewTicker(keyInterval)
	defer keys.Stop()
	for {
		select {
		case <-keys.C:
			if typed := d.screen.Typed(); typed != "" {
				return d.press(typed), nil
			}
		case <-rested:
			changed = d.list.Changed()
		case <-changed:
			return true, nil
		case <-late:
			return true, nil
		case s := <-d.signals:
			if s == syscall.SIGTSTP {
				err = d.suspend(ctx)
			}
			return s != syscall.SIGQUIT && s != syscall.SIGHUP, err
		case <-ctx.Done():
			return false, nil
		}
	}
}

// press does what a key says, or several that were typed at once, and reports whether to continue.
func (d *display) press(typed string) bool {
	_, rows, _ := terminal.Size(d.out)
	moves := map[string]int{"\x1b[A": -1, "\x1b[B": 1, "\x1b[5~": -rows, "\x1b[6~": rows}
	for typed != "" {
		key := typed[:1]
		for move := range moves {
			if strings.HasPrefix(typed, move) {
				key = move
			}
		}
		typed = typed[len(key):]
		switch {
		case moves[key] != 0:
			d.skip = max(0, d.skip+moves[key])
		case key == "\x1b":
			d.search, d.typing = "", false
		case d.typing && (key == "\r" || key == "\n"):
			d.typing = false
		case d.typing && (key == "\b" || key == "\x7f"):
			_, size := utf8.DecodeLastRuneInString(d.search)
			d.search = d.search[:len(d.search)-size]
		case d.typing:
			d.search += key
		case key == "q":
			return false
		case key == "/":
			d.search, d.typing, d.skip = "", true, 0
		}
	}
	return true
}

// suspend gives the terminal back until this process is continued. Without a shell that would
// continue it, as with ssh -t or in a container, it does nothing.
func (d *display) suspend(ctx context.Context) error {
	if session, _ := unix.Getsid(0); session == syscall.Getpgrp() {
		return nil
	}
	if err := d.screen.Close(); err != nil {
		return err
	}
	err := syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	for continued := err != nil; !continued; {
		select {
		case s := <-d.signals:
			continued = s == syscall.SIGCONT
		case <-ctx.Done():
			continued = true
		}
	}
	var reopened error
	d.screen, reopened = terminal.OpenScreen(d.out)
	return errors.Join(err, reopened)
}
