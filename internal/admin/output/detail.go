package output

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// Lock prints one lock: all of it, a table only the head of what is long.
func Lock(w io.Writer, f Format, d admin.Detail) error {
	if f == JSON || f == YAML {
		return encode(w, f, d.LockDetail)
	}
	if f == Name {
		_, err := fmt.Fprintln(w, terminal.Quote(d.Name))
		return err
	}
	b := bufio.NewWriter(w)
	describe(b, d, boundsOf(f))
	return b.Flush() // it keeps the first error
}

// Removed prints a lock that was removed.
func Removed(w io.Writer, f Format, r api.Forced) error {
	switch f {
	case JSON, YAML:
		return encode(w, f, r)
	case Name:
		_, err := fmt.Fprintln(w, terminal.Quote(r.Name))
		return err
	}
	_, err := fmt.Fprintf(w, "lock %s removed at revision %d (uuid %s)\n", terminal.Quote(r.Name), r.Revision, terminal.Quote(r.UUID))
	return err
}

func encode(w io.Writer, f Format, v any) error {
	encoded, err := encodeYAML(v)
	if f == JSON {
		encoded, err = encodeJSON(v, "")
		encoded = append(encoded, '\n')
	}
	if err != nil {
		return err
	}
	_, err = w.Write(encoded)
	return err
}

// Question is what unlock asks. The lock was shown before, perhaps at length.
func Question(d admin.Detail) string {
	holder := ""
	switch {
	case d.Owner != "" && d.Hostname != "":
		holder = ", held by " + terminal.Quote(d.Owner) + " on " + terminal.Quote(d.Hostname)
	case d.Owner+d.Hostname != "":
		holder = ", held by " + terminal.Quote(d.Owner+d.Hostname)
	}
	return fmt.Sprintf("Remove lock %s%s? Its owner may still be working. [y/N] ", terminal.Truncate(terminal.Quote(d.Name), 60), terminal.Truncate(holder, 100))
}

// bounds are how much is printed of values.
type bounds struct{ lines, columns, fields int }

func boundsOf(f Format) bounds {
	if f == Wide {
		return bounds{lines: 10_000, columns: 10_000, fields: 1_000}
	}
	return bounds{lines: 30, columns: 200, fields: 20}
}

// describe prints the lines that there are something to say for.
func describe(w *bufio.Writer, d admin.Detail, most bounds) {
	values := current(d)
	line := func(title, shown string) {
		if shown != "" && shown != none {
			fmt.Fprintf(w, "%-*s%s\n", titleColumns, title+":", shown)
		}
	}
	value := func(title, field string) {
		if v := values[field]; v != "" {
			block(w, fmt.Sprintf("%-*s", titleColumns, title+":"), "  ", v, most)
		}
	}
	line("Name", terminal.Truncate(terminal.Quote(d.Name), most.columns))
	line("State", d.State)
	for _, part := range wrap(terminal.Text(strings.Join(d.Outlook, " ")), textColumns) {
		fmt.Fprintf(w, "%-*s%s\n", titleColumns, "", part)
	}
	line("UUID", optional(d.UUID))
	line("Hostname", optional(d.Hostname))
	line("Owner", optional(d.Owner))
	value("PID", "pid")
	value("Purpose", "purpose")
	line("Locked", moment(d.LockedAt, d.At))
	line("Renewed", moment(d.AliveAt, d.At))
	line("Alert", moment(d.AlertAt, d.At))
	line("Auto-unlock", moment(d.AutoUnlockAt, d.At))
	line("Token", token(d.Token))
	line("Revision", strconv.FormatInt(d.Revision, 10))
	value("Backtrace", "backtrace")
	describeOthers(w, d, most)
}

const (
	titleColumns = 13
	textColumns  = 88 - titleColumns
)

// current gives the fields of the present owner by name.
func current(d admin.Detail) map[string]string {
	values := make(map[string]string, len(d.Fields))
	for _, f := range d.Fields {
		if !slices.Contains(d.Leftovers, f.Name) {
			values[f.Name] = f.Value
		}
	}
	return values
}

// moment writes an instant, and how far it is away.
func moment(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return terminal.Time(t) + "  (" + relative(t, now) + ")"
}

// described tells whether a field has a line of its own, with its value if that could
// be read.
func described(d admin.Detail, f api.Field) bool {
	switch f.Name {
	case "uuid":
		return d.UUID != ""
	case "hostname", "owner", "pid", "purpose", "backtrace":
		return true
	case "locked_at":
		return !d.LockedAt.IsZero()
	case "alive_at":
		return !d.AliveAt.IsZero()
	case "alert_at":
		return !d.AlertAt.IsZero()
	case "auto_unlock_at":
		return !d.AutoUnlockAt.IsZero()
	}
	return false
}

// describeOthers prints the fields that have no line of their own, and last those that
// an earlier owner left.
func describeOthers(w *bufio.Writer, d admin.Detail, most bounds) {
	var others, left []api.Field
	for _, f := range d.Fields {
		switch {
		case slices.Contains(d.Leftovers, f.Name):
			left = append(left, f)
		case !described(d, f) || d.Token == 0 && (f.Name == "hostname" || f.Name == "owner"):
			others = append(others, f)
		}
	}
	printFields(w, "Other fields", others, d.MoreFields, most)
	printFields(w, "Left by an earlier owner, and not read", left, 0, most)
}

func printFields(w *bufio.Writer, title string, fields []api.Field, more int, most bounds) {
	if len(fields)+more == 0 {
		return
	}
	fmt.Fprintf(w, "%s:\n", title)
	shown := fields[:min(len(fields), most.fields)]
	names := make([]string, len(shown))
	longest := 0
	for i, f := range shown {
		names[i] = terminal.Truncate(terminal.Quote(f.Name), most.columns)
		longest = max(longest, min(terminal.Columns(names[i]), 30))
	}
	for i, f := range shown {
		pad := strings.Repeat(" ", max(longest-terminal.Columns(names[i]), 0))
		block(w, "  "+names[i]+":"+pad+" ", "    ", f.Value, most)
	}
	if more += len(fields) - len(shown); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// block prints a value behind its title, or below it where it has several lines, which
// are indented so that none looks like a title.
func block(w *bufio.Writer, title, indent, value string, most bounds) {
	if !strings.Contains(value, "\n") {
		fmt.Fprintf(w, "%s%s\n", title, terminal.Truncate(terminal.Quote(value), most.columns))
		return
	}
	fmt.Fprintf(w, "%s\n", strings.TrimRight(title, " "))
	lines := strings.Split(strings.TrimRight(value, "\r\n"), "\n")
	for _, l := range lines[:min(len(lines), most.lines)] {
		l = strings.ReplaceAll(strings.TrimSuffix(l, "\r"), "\t", "    ")
		fmt.Fprintln(w, strings.TrimRight(indent+terminal.Truncate(terminal.Text(l), most.columns), " "))
	}
	if more := len(lines) - most.lines; more > 0 {
		fmt.Fprintf(w, "%s… %d more lines: -o wide\n", indent, more)
	}
}

// wrap breaks text between words, of which one may be longer than a line.
func wrap(long string, most int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(long) {
		if line != "" && terminal.Columns(line)+1+terminal.Columns(word) > most {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
