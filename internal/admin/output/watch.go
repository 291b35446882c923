package output

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Watches reports whether changes can be printed in a format.
func (f Format) Watches() bool { return f != YAML && f != Name }

// Draws reports whether a screen can show a format.
func (f Format) Draws() bool { return f == Table || f == Wide }

// Lines prints changes of locks, one line each.
type Lines struct {
	w       io.Writer
	options Options
	widths  []int
}

// NewLines returns Lines that print to w.
func NewLines(w io.Writer, o Options) *Lines { return &Lines{w: w, options: o} }

// Print prints changes as they are at a time, the first time below the titles of a table.
func (l *Lines) Print(at time.Time, changes []admin.Change) error {
	b := bufio.NewWriterSize(l.w, 64<<10)
	if l.options.Format.Draws() {
		l.printRows(b, at, changes)
		return b.Flush()
	}
	for i := range changes {
		if err := printEvent(b, l.options.Format, &changes[i], at); err != nil {
			return err
		}
	}
	return b.Flush()
}

func (l *Lines) printRows(b *bufio.Writer, at time.Time, changes []admin.Change) {
	l.options.At = at
	t := newLockTable(l.options, terminal.Colored(l.w))
	first := l.widths == nil
	if first {
		l.widths = []int{0, len("malformed"), 0, 0, len("12m01s"), len("12m01s ago"), len("12m01s ago")}
	}
	for i, width := range l.widths {
		t.widths[i] = max(t.widths[i], width)
	}
	locks := make([]api.Lock, len(changes))
	for i := range changes {
		if locks[i] = lockOf(&changes[i], at); changes[i].Gone {
			locks[i].State, locks[i].AlertAt, locks[i].AutoUnlockAt = api.EventGone, time.Time{}, time.Time{}
		}
		t.fit(&locks[i])
	}
	l.widths = t.widths
	if first && t.headers {
		fmt.Fprintln(b, t.titles(unbounded))
	}
	for i := range locks {
		fmt.Fprintln(b, t.row(&locks[i], unbounded))
	}
}

// lockOf returns the lock in the state in which it was read.
func lockOf(c *admin.Change, at time.Time) api.Lock {
	l := api.NewLock(&c.Lock, at, c.Ahead)
	l.State, l.Waiters = c.State.String(), c.Waiters
	return l
}

func printEvent(b *bufio.Writer, f Format, c *admin.Change, at time.Time) error {
	l := lockOf(c, at)
	e := api.Event{Type: api.EventGone, Name: l.Name}
	if c.Matches {
		e = api.Event{Type: api.EventLock, Name: l.Name, Lock: &l}
	}
	if f.hasTemplate() {
		err := printTemplate(b, f, e)
		fmt.Fprintln(b)
		return err
	}
	encoded, err := encode(f, "", e)
	fmt.Fprintf(b, "%s\n", encoded)
	return err
}

// Frame returns what a screen shows of a list: at most so many rows of so many columns, without the
// first skip locks. note says what is wrong with the list. A row that does not fit has no holder, and then
// no times but that of the removal.
func Frame(o Options, v admin.View, skip int, note string, colored bool, columns, rows int) []string {
	o.At = v.At
	t := newLockTable(o, colored)
	line := terminal.Truncate(terminal.Text(strings.ReplaceAll(note, "\n", " ")), columns)
	if colored && line != "" {
		line = terminal.Paint(line, terminal.Red)
	}
	frame := []string{terminal.Truncate(summary(v), columns), line}
	room := max(1, rows-len(frame))
	if t.headers {
		room = max(1, room-1)
	}
	shown, rest := v.Locks[min(len(v.Locks), skip):], ""
	if v.Matched-skip > room {
		shown = shown[:min(len(shown), room-1)]
		rest = terminal.Truncate(fmt.Sprintf("… and %d more", v.Matched-skip-len(shown)), columns)
	}
	for i := range shown {
		t.fit(&shown[i])
	}
	if o.Format == Table {
		t.narrow(columns, "HOSTNAME", "OWNER", "HELD", "WAITERS", "ALERT")
	}
	if t.headers && len(shown) > 0 {
		frame = append(frame, t.titles(columns))
	}
	for i := range shown {
		frame = append(frame, t.row(&shown[i], columns))
	}
	if rest != "" {
		frame = append(frame, rest)
	}
	return frame[:min(len(frame), rows)]
}

// summary counts what is in a list.
func summary(v admin.View) string {
	var states []string
	for _, s := range protocol.ByUrgency() {
		if n := v.States[s]; n > 0 {
			states = append(states, fmt.Sprintf("%d %s", n, s))
		}
	}
	words := fmt.Sprintf("%d locks under %s", v.Total, terminal.Quote(v.Prefix))
	if v.Total == 1 {
		words = "1 lock under " + terminal.Quote(v.Prefix)
	}
	if v.Matched < v.Total {
		words = fmt.Sprintf("%d of %s", v.Matched, words)
	}
	if len(states) > 0 {
		words += ": " + strings.Join(states, ", ")
	}
	return fmt.Sprintf("%s  %s; by %s", v.At.Format("15:04:05 UTC"), words, v.Sort)
}
