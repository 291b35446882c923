package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/pause"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options say how List prints.
type Options struct {
	Format Format
	// At is the time that times are relative to.
	At time.Time
	// Explained adds explanations to a wide table.
	Explained bool
	// NoHeaders leaves the titles of a table out.
	NoHeaders bool
}

// List prints locks. It reads the sequence once, or twice for a table, and keeps one lock at a
// time in memory, except for a template, which needs all of them.
func List(w io.Writer, o Options, locks iter.Seq[api.Lock]) error {
	b := bufio.NewWriterSize(w, 64<<10)
	var err error
	switch f := o.Format; {
	case f.hasTemplate():
		err = printTemplate(b, f, map[string][]api.Lock{"locks": slices.AppendSeq([]api.Lock{}, locks)})
	case f == JSON, f == YAML:
		err = printList(b, f, locks)
	case f == Name:
		for l := range locks {
			fmt.Fprintln(b, terminal.Quote(l.Name))
		}
	default:
		printTable(b, newTable(o, terminal.Colored(w)), locks)
	}
	return cmp.Or(err, b.Flush()) // b keeps the first error of a write
}

// table is a table of locks.
type table struct {
	columns []column
	widths  []int
	headers bool
}

// column is a column of a table. A cell takes at most limit columns of the terminal, or
// wide ones in the wide table.
type column struct {
	title       string
	limit, wide int
	cell        func(l *api.Lock) string
	color       func(l *api.Lock) terminal.Color // nil for none
}

func newTable(o Options, colored bool) *table {
	const unlimited = 1 << 10 // the cells are short
	now := o.At
	columns := []column{
		{"NAME", 60, 120, func(l *api.Lock) string { return terminal.Quote(l.Name) }, nil},
		{"STATE", unlimited, unlimited, func(l *api.Lock) string { return l.State }, nil},
		{"HOSTNAME", 40, 120, func(l *api.Lock) string { return optional(l.Hostname) }, nil},
		{"OWNER", 30, 120, func(l *api.Lock) string { return optional(l.Owner) }, nil},
		{"HELD", unlimited, unlimited, func(l *api.Lock) string { return held(l.LockedAt, now) }, nil},
		{"ALERT", unlimited, unlimited, func(l *api.Lock) string { return relative(l.AlertAt, now) }, nil},
		{"UNLOCK", unlimited, unlimited, func(l *api.Lock) string { return relative(l.AutoUnlockAt, now) }, nil},
	}
	if colored {
		columns[1].color = func(l *api.Lock) terminal.Color { return colorOf(l.State) }
	}
	if o.Format == Wide {
		columns = append(columns,
			column{"UUID", unlimited, unlimited, func(l *api.Lock) string { return optional(l.UUID) }, nil},
			column{"TOKEN", unlimited, unlimited, func(l *api.Lock) string { return token(l.Token) }, nil},
			column{"KEYS", unlimited, unlimited, func(l *api.Lock) string { return strconv.Itoa(l.Keys) }, nil})
		for i, t := range new(api.Lock).Texts() {
			columns = append(columns, column{strings.ToUpper(t.Title), 60, 60, func(l *api.Lock) string { return optional(l.Texts()[i].Value) }, nil})
		}
		for i := range columns {
			columns[i].limit = columns[i].wide
		}
	}
	if o.Format == Wide && o.Explained {
		columns = append(columns, column{"EXPLANATION", unlimited, unlimited, func(l *api.Lock) string { return cmp.Or(terminal.Text(l.Explanation), none) }, nil})
	}
	t := &table{columns: columns, headers: !o.NoHeaders}
	for _, c := range columns {
		t.widths = append(t.widths, len(c.title))
		if o.NoHeaders {
			t.widths[len(t.widths)-1] = 0
		}
	}
	return t
}

// colorOf is the color of the word of a state: the worse the state, the more it is seen.
func colorOf(state string) terminal.Color {
	switch state {
	case protocol.Expired.String():
		return terminal.Red
	case protocol.Overdue.String():
		return terminal.Yellow
	case protocol.Malformed.String(), protocol.Undated.String(), protocol.Orphaned.String():
		return terminal.Magenta
	case protocol.Held.String():
		return terminal.Green
	}
	return terminal.Plain
}

// printTable reads all locks a first time for the widths.
func printTable(w *bufio.Writer, t *table, locks iter.Seq[api.Lock]) {
	empty := true
	for l := range locks {
		empty = false
		t.fit(&l)
	}
	if empty {
		return
	}
	if t.headers {
		fmt.Fprintln(w, t.titles(unbounded))
	}
	for l := range locks {
		fmt.Fprintln(w, t.row(&l, unbounded))
	}
}

// fit makes the columns wide enough for a lock.
func (t *table) fit(l *api.Lock) {
	for i, c := range t.columns {
		t.widths[i] = max(t.widths[i], terminal.Columns(terminal.Truncate(c.cell(l), c.limit)))
	}
}

func (t *table) titles(limit int) string {
	return t.line(limit, func(c column) (string, terminal.Color) { return c.title, terminal.Plain })
}

func (t *table) row(l *api.Lock, limit int) string {
	return t.line(limit, func(c column) (string, terminal.Color) {
		color := terminal.Plain
		if c.color != nil {
			color = c.color(l)
		}
		return terminal.Truncate(c.cell(l), c.limit), color
	})
}

// unbounded is a limit for lines that are not cut off.
const unbounded = math.MaxInt

// line returns a line of at most limit columns.
func (t *table) line(limit int, cell func(column) (string, terminal.Color)) string {
	const gap = 3
	var b strings.Builder
	for i, c := range t.columns {
		text, color := cell(c)
		text = terminal.Truncate(text, limit)
		b.WriteString(terminal.Paint(text, color))
		pad := t.widths[i] - terminal.Columns(text) + gap
		if limit -= t.widths[i] + gap; limit <= 0 || i == len(t.columns)-1 {
			break
		}
		b.WriteString(strings.Repeat(" ", max(0, pad)))
	}
	return b.String()
}

// none stands for an absent value.
const none = "-"

func optional(s string) string {
	if s == "" {
		return none
	}
	return terminal.Quote(s)
}

func token(n int64) string {
	if n == 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

// held returns for how long a lock is held. It compares the holder's clock with ours and
// may be negative.
func held(since, now time.Time) string {
	if since.IsZero() {
		return none
	}
	return terminal.Duration(now.Sub(since))
}

func relative(t, now time.Time) string {
	if t.IsZero() {
		return none
	}
	return terminal.Relative(t, now)
}

// Paused prints a pause that has begun.
func Paused(w io.Writer, prefix string, r pause.Record) error {
	_, err := fmt.Fprintf(w, "paused until %s: %s under %s is removed automatically\n", localAndUTC(r.Until), noLock(r.Match), terminal.Quote(prefix))
	return err
}

// Resumed prints that a pause has ended.
func Resumed(w io.Writer, prefix, match string) error {
	_, err := fmt.Fprintf(w, "resumed: %s under %s\n", locks(match), terminal.Quote(prefix))
	return err
}

// NotPaused says that there is no such pause.
func NotPaused(prefix, match string) string {
	if match == "" {
		return fmt.Sprintf("there is no pause of all locks under %s", prefix)
	}
	return fmt.Sprintf("there is no pause of the pattern %s under %s", terminal.QuoteAlways(match), prefix)
}

// Remaining prints the pauses that are in force, and the keys of records that no daemon can read.
func Remaining(w io.Writer, prefix string, remaining []pause.Record, broken []string) error {
	b := bufio.NewWriter(w)
	for _, r := range remaining {
		fmt.Fprintf(b, "still paused until %s: %s under %s; by %s: %s\n",
			localAndUTC(r.Until), locks(r.Match), terminal.Quote(prefix), terminal.Quote(r.By), terminal.Quote(r.Reason))
	}
	for _, key := range broken {
		fmt.Fprintf(b, "all locks are kept: the record %s cannot be read; if it is nothing else's, delete it with etcdctl del\n", terminal.Quote(key))
	}
	return b.Flush()
}

func noLock(match string) string {
	if match == "" {
		return "no lock"
	}
	return "no lock that matches " + terminal.QuoteAlways(match)
}

func locks(match string) string {
	if match == "" {
		return "all locks"
	}
	return "locks that match " + terminal.QuoteAlways(match)
}

// localAndUTC formats an instant in the time zone of this host and in UTC.
func localAndUTC(t time.Time) string {
	utc := terminal.Time(t)
	if local := t.Local().Format("2006-01-02 15:04:05 MST"); local != utc {
		return local + " (" + utc + ")"
	}
	return utc
}
