package output

import (
	"bufio"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// column is a column of a table. A cell takes at most limit columns of the terminal.
type column[T any] struct {
	title string
	limit int
	cell  func(*T) string
	color func(*T) terminal.Color // nil for none
}

func newColumn[T any](title string, limit int, cell func(*T) string) column[T] {
	return column[T]{title: title, limit: limit, cell: cell}
}

// table is a table with a row for each T.
type table[T any] struct {
	columns []column[T]
	widths  []int
	gap     int
	headers bool
}

func newTable[T any](columns []column[T], gap int, headers bool) *table[T] {
	t := &table[T]{columns, make([]int, len(columns)), gap, headers}
	for i, c := range columns {
		if headers {
			t.widths[i] = len(c.title)
		}
	}
	return t
}

// print reads all rows a first time for the widths. Without rows it prints no titles. more, if it is
// not nil, prints what follows a row.
func (t *table[T]) print(w *bufio.Writer, rows iter.Seq[T], more func(*T)) {
	empty := true
	for r := range rows {
		empty = false
		t.fit(&r)
	}
	if t.headers && !empty {
		fmt.Fprintln(w, t.titles(unbounded))
	}
	for r := range rows {
		fmt.Fprintln(w, t.row(&r, unbounded))
		if more != nil {
			more(&r)
		}
	}
}

// fit makes the columns wide enough for a row.
func (t *table[T]) fit(r *T) {
	for i, c := range t.columns {
		t.widths[i] = max(t.widths[i], terminal.Columns(terminal.Truncate(c.cell(r), c.limit)))
	}
}

func (t *table[T]) titles(limit int) string {
	return t.line(limit, func(c column[T]) (string, terminal.Color) { return c.title, terminal.Plain })
}

func (t *table[T]) row(r *T, limit int) string {
	return t.line(limit, func(c column[T]) (string, terminal.Color) {
		color := terminal.Plain
		if c.color != nil {
			color = c.color(r)
		}
		return terminal.Truncate(c.cell(r), c.limit), color
	})
}

// narrow drops columns by their titles, one after the other, until a row fits.
func (t *table[T]) narrow(limit int, titles ...string) {
	for _, title := range titles {
		width := -t.gap
		for _, w := range t.widths {
			width += w + t.gap
		}
		i := slices.IndexFunc(t.columns, func(c column[T]) bool { return c.title == title })
		if width <= limit {
			return
		}
		t.columns, t.widths = slices.Delete(t.columns, i, i+1), slices.Delete(t.widths, i, i+1)
	}
}

// unbounded is a limit for what is not cut off.
const unbounded = math.MaxInt

// line returns a line of at most limit columns.
func (t *table[T]) line(limit int, cell func(column[T]) (string, terminal.Color)) string {
	var b strings.Builder
	for i, c := range t.columns {
		text, color := cell(c)
		text = terminal.Truncate(text, limit)
		b.WriteString(terminal.Paint(text, color))
		pad := t.widths[i] - terminal.Columns(text) + t.gap
		if limit -= t.widths[i] + t.gap; limit <= 0 || i == len(t.columns)-1 {
			break
		}
		b.WriteString(strings.Repeat(" ", max(0, pad)))
	}
	return b.String()
}
