package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Lock prints one lock. A table holds the beginning of long values only.
func Lock(w io.Writer, f Format, d admin.Detail) error {
	state := d.State
	if terminal.Colored(w) {
		state = terminal.Paint(state, colorOf(state))
	}
	return printAs(w, f, []string{d.Name}, d.LockDetail, func(b *bufio.Writer) { describe(b, d, state, limitsOf(f)) })
}

// Removed prints a lock that was removed.
func Removed(w io.Writer, f Format, r api.Forced) error {
	return printAs(w, f, []string{r.Name}, r, func(b *bufio.Writer) {
		fmt.Fprintf(b, "lock %s removed at revision %d (uuid %s)\n", terminal.Quote(r.Name), r.Revision, terminal.Quote(r.UUID))
	})
}

// Unlocked prints what became of one of many locks.
func Unlocked(w io.Writer, f Format, l api.Unlocked) error {
	return printAs(w, f, []string{l.Name}, l, func(b *bufio.Writer) {
		how := fmt.Sprintf("removed at revision %d", l.Revision)
		if l.Outcome != api.OutcomeRemoved {
			how = l.Outcome + ": " + terminal.Text(l.Error)
		}
		fmt.Fprintf(b, "%d/%d %s %s (uuid %s)\n", l.Total-l.NotTried, l.Total, terminal.Quote(l.Name), how, terminal.Quote(l.UUID))
	})
}

// Unrecorded says that an unlock leaves no record, and why.
func Unrecorded(err error) string {
	return terminal.Text(protocol.Clip([]byte("etcd refuses the record of this unlock, so that none is left: "+err.Error()), 1000))
}

// Question returns the question that unlock asks once it has printed the lock.
func Question(d admin.Detail, recorded bool) string {
	holder, without := "", ""
	switch {
	case d.Owner != "" && d.Hostname != "":
		holder = ", held by " + terminal.Quote(d.Owner) + " on " + terminal.Quote(d.Hostname)
	case d.Owner+d.Hostname != "":
		holder = ", held by " + terminal.Quote(d.Owner+d.Hostname)
	}
	if !recorded {
		without = ", without a record"
	}
	return fmt.Sprintf("Remove lock %s%s%s? Its holder may still be working. [y/N] ",
		terminal.Truncate(terminal.Quote(d.Name), 60), terminal.Truncate(holder, 100), without)
}

type limits struct {
	lines, columns, fields int
	more                   string // the output that has more lines
}

func limitsOf(f Format) limits {
	if f == Wide {
		return limits{lines: 10_000, columns: 10_000, fields: 1_000, more: "-o json"}
	}
	return limits{lines: 30, columns: 200, fields: 20, more: "-o wide"}
}

const (
	titleColumns = 13
	textColumns  = 88 - titleColumns
)

// describe prints what is known of a lock: first what has a title, then the other fields,
// and last those of an earlier holder.
func describe(w *bufio.Writer, d admin.Detail, state string, bounds limits) {
	p := description{w: w, bounds: bounds}
	var leftovers []api.Field
	for _, f := range d.Fields {
		if slices.Contains(d.Leftovers, f.Name) {
			leftovers = append(leftovers, f)
		} else {
			p.others = append(p.others, f)
		}
	}
	p.line("Name:", terminal.Truncate(terminal.Quote(d.Name), bounds.columns))
	p.line("State:", state)
	p.text("", strings.Join(d.Outlook, " "))
	p.text("Removal:", removal(d))
	for _, sentence := range d.Paused {
		p.text("Paused:", sentence)
	}
	p.known("UUID:", "uuid", optional(d.UUID))
	p.known("Hostname:", "hostname", optional(d.Hostname))
	p.known("Owner:", "owner", optional(d.Owner))
	p.field("PID:", "pid")
	for _, t := range d.Texts() {
		p.field(t.Title+":", t.Field)
	}
	p.known("Locked:", "locked_at", moment(d.Corrected(d.LockedAt), d.At))
	p.known("Renewed:", "alive_at", moment(d.Corrected(d.AliveAt), d.At))
	p.known("Answered:", "answered_at", moment(d.Answered(), d.At))
	if d.Verdict != nil && d.Token != 0 { // of a daemon, whose clock counts
		p.text("Alive:", cmp.Or(d.Sentence(d.Verdict.Now), "not known: the daemon has seen no rhythm of renewals"))
	}
	p.known("Alert:", "alert_at", moment(d.Corrected(d.AlertAt), d.At))
	p.known("Auto-unlock:", "auto_unlock_at", moment(d.Corrected(d.AutoUnlockAt), d.At))
	if d.ClockOffset != 0 {
		p.line("Clock:", "The holder's clock is "+terminal.Clock(d.ClockOffset)+", by which the times above are corrected.")
	}
	p.waiters(d.Queue, d.At)
	p.known("Token:", "", token(d.Token))
	p.line("Revision:", strconv.FormatInt(d.Revision, 10))
	p.field("Backtrace:", "backtrace")
	p.field("Stack:", "stack")
	p.fields("Other fields", p.others, d.MoreFields)
	p.fields("Left by an earlier holder and ignored", leftovers, 0)
}

// waiters prints how many wait, and the first in detail.
func (p *description) waiters(q api.WaiterList, now time.Time) {
	p.text("Waiters:", q.Error)
	if q.Total() == 0 {
		return
	}
	p.line("Waiters:", strconv.Itoa(q.Total()))
	shown := q.Waiters[:min(len(q.Waiters), p.bounds.fields)]
	for i, w := range shown {
		words := "a ticket that cannot be read"
		if !w.Unreadable {
			words = fmt.Sprintf("%s on %s, pid %s", optional(w.Owner), optional(w.Hostname), optional(w.PID))
		}
		if !w.Since.IsZero() {
			words += ", since " + moment(w.Since, now)
		}
		if w.Purpose != "" {
			words += ": " + terminal.Quote(w.Purpose)
		}
		fmt.Fprintf(p.w, "  %d. %s\n", i+1, terminal.Truncate(words, p.bounds.columns))
	}
	if more := q.Total() - len(shown); more > 0 {
		fmt.Fprintf(p.w, "  and %d more\n", more)
	}
}

// description prints a lock. others are the fields that it has not printed yet.
type description struct {
	w      *bufio.Writer
	bounds limits
	others []api.Field
}

// take removes a field from the others.
func (p *description) take(name string) api.Field {
	i := slices.IndexFunc(p.others, func(f api.Field) bool { return f.Name == name })
	if i < 0 {
		return api.Field{}
	}
	f := p.others[i]
	p.others = slices.Delete(p.others, i, i+1)
	return f
}

func (p *description) line(title, shown string) {
	fmt.Fprintf(p.w, "%-*s%s\n", titleColumns, title, shown)
}

// text prints sentences, if there are any.
func (p *description) text(title, sentences string) {
	if sentences == "" {
		return
	}
	for _, part := range wrap(terminal.Text(sentences), textColumns) {
		p.line(title, part)
		title = ""
	}
}

// removal returns what is known of when the lock is removed.
func removal(d admin.Detail) string {
	switch {
	case d.Explanation == "" && (d.State == "undated" || d.State == "malformed"):
		return "" // the outlook says it
	case d.Explanation == "":
		return "Only a daemon knows whether and when it removes the lock. To ask one: unlocker show --url http://HOST:9481 NAME"
	}
	return fmt.Sprintf("The lock %s. (By the daemon at %s; times are UTC.)", d.Explanation, d.ExplainedBy)
}

// known prints what was read of a field, if it could be read.
func (p *description) known(title, field, shown string) {
	if shown != "" && shown != none {
		p.take(field)
		p.line(title, shown)
	}
}

// field prints a field as it is, if the lock has it.
func (p *description) field(title, name string) {
	if f := p.take(name); f.Value != "" {
		p.block(fmt.Sprintf("%-*s", titleColumns, title), "  ", f)
	}
}

// moment formats an instant and its distance from now.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return terminal.Time(t) + "  (" + relative(t, now) + ")"
}

func (p *description) fields(title string, fields []api.Field, more int) {
	if len(fields)+more == 0 {
		return
	}
	fmt.Fprintf(p.w, "%s:\n", title)
	shown := fields[:min(len(fields), p.bounds.fields)]
	names, longest := make([]string, len(shown)), 0
	for i, f := range shown {
		names[i] = terminal.Truncate(terminal.Quote(f.Name), p.bounds.columns) + ":"
		longest = max(longest, min(terminal.Columns(names[i]), 31))
	}
	for i, f := range shown {
		pad := max(longest-terminal.Columns(names[i]), 0)
		p.block("  "+names[i]+strings.Repeat(" ", pad+1), "    ", f)
	}
	if more += len(fields) - len(shown); more > 0 {
		fmt.Fprintf(p.w, "  and %d more\n", more)
	}
}

// block prints a value after its title, or below it where it has several lines, which
// are indented so that none looks like a title. It says so where not all of it was read.
func (p *description) block(title, indent string, f api.Field) {
	if !strings.Contains(f.Value, "\n") {
		fmt.Fprintf(p.w, "%s%s\n", title, terminal.Truncate(terminal.Quote(f.Value), p.bounds.columns))
	} else {
		fmt.Fprintln(p.w, strings.TrimRight(title, " "))
		p.lines(indent, f.Value)
	}
	if f.TruncatedFrom > 0 {
		fmt.Fprintf(p.w, "%s… truncated: it has %d bytes in etcd\n", indent, f.TruncatedFrom)
	}
}

func (p *description) lines(indent, value string) {
	lines := strings.Split(strings.TrimRight(value, "\r\n"), "\n")
	for _, l := range lines[:min(len(lines), p.bounds.lines)] {
		l = strings.ReplaceAll(strings.TrimSuffix(l, "\r"), "\t", "    ")
		fmt.Fprintln(p.w, strings.TrimRight(indent+terminal.Truncate(terminal.Text(l), p.bounds.columns), " "))
	}
	if more := len(lines) - p.bounds.lines; more > 0 {
		fmt.Fprintf(p.w, "%s… %d more lines: %s\n", indent, more, p.bounds.more)
	}
}

// wrap breaks text between words, of which one may be longer than a line.
func wrap(text string, columns int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && terminal.Columns(line)+1+terminal.Columns(word) > columns {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
