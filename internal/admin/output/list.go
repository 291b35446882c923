package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// List prints locks with their times relative to now, and in a wide table with their
// explanations if explained is set. It reads the sequence once, or twice for a table, and
// keeps one lock at a time in memory.
func List(w io.Writer, f Format, now time.Time, locks iter.Seq[api.Lock], explained bool) error {
	b := bufio.NewWriterSize(w, 64<<10)
	var err error
	switch f {
	case JSON, YAML:
		err = printList(b, f, locks)
	case Name:
		for l := range locks {
			fmt.Fprintln(b, terminal.Quote(l.Name))
		}
	default:
		printTable(b, tableColumns(f, now, explained), locks)
	}
	return cmp.Or(err, b.Flush()) // b keeps the first error of a write
}

// column is a column of a table. A cell takes at most limit columns of the terminal, or
// wide ones in the wide table.
type column struct {
	title       string
	limit, wide int
	cell        func(l *api.Lock) string
}

func tableColumns(f Format, now time.Time, explained bool) []column {
	const unlimited = 1 << 10 // the cells are short
	columns := []column{
		{"NAME", 60, 120, func(l *api.Lock) string { return terminal.Quote(l.Name) }},
		{"STATE", unlimited, unlimited, func(l *api.Lock) string { return l.State }},
		{"HOSTNAME", 40, 120, func(l *api.Lock) string { return optional(l.Hostname) }},
		{"OWNER", 30, 120, func(l *api.Lock) string { return optional(l.Owner) }},
		{"HELD", unlimited, unlimited, func(l *api.Lock) string { return held(l.LockedAt, now) }},
		{"ALERT", unlimited, unlimited, func(l *api.Lock) string { return relative(l.AlertAt, now) }},
		{"UNLOCK", unlimited, unlimited, func(l *api.Lock) string { return relative(l.AutoUnlockAt, now) }},
	}
	if f != Wide {
		return columns
	}
	columns = append(columns,
		column{"UUID", unlimited, unlimited, func(l *api.Lock) string { return optional(l.UUID) }},
		column{"TOKEN", unlimited, unlimited, func(l *api.Lock) string { return token(l.Token) }},
		column{"KEYS", unlimited, unlimited, func(l *api.Lock) string { return strconv.Itoa(l.Keys) }})
	if explained {
		columns = append(columns, column{"EXPLANATION", unlimited, unlimited, func(l *api.Lock) string { return cmp.Or(terminal.Text(l.Explanation), none) }})
	}
	for i := range columns {
		columns[i].limit = columns[i].wide
	}
	return columns
}

// printTable reads all locks a first time for the widths.
func printTable(w *bufio.Writer, columns []column, locks iter.Seq[api.Lock]) {
	widths, titles := make([]int, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		titles[i], widths[i] = c.title, len(c.title)
	}
	empty := true
	for l := range locks {
		empty = false
		for i, c := range columns {
			widths[i] = max(widths[i], terminal.Columns(terminal.Truncate(c.cell(&l), c.limit)))
		}
	}
	if empty {
		return
	}
	printRow(w, titles, widths)
	cells := make([]string, len(columns))
	for l := range locks {
		for i, c := range columns {
			cells[i] = terminal.Truncate(c.cell(&l), c.limit)
		}
		printRow(w, cells, widths)
	}
}

func printRow(w *bufio.Writer, cells []string, widths []int) {
	const gap = 3
	last := len(cells) - 1
	for i, cell := range cells[:last] {
		fmt.Fprint(w, cell, strings.Repeat(" ", widths[i]-terminal.Columns(cell)+gap))
	}
	fmt.Fprintln(w, cells[last])
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
