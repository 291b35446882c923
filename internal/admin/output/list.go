package output

import (
	"bufio"
	"cmp"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// List prints locks as they are at now. There may be very many: it goes through them,
// twice for a table, and holds one at a time.
func List(w io.Writer, f Format, now time.Time, locks iter.Seq[api.Lock]) error {
	b := bufio.NewWriterSize(w, 64<<10)
	var err error
	switch f {
	case JSON, YAML:
		err = listData(b, f, locks)
	case Name:
		err = listNames(b, locks)
	default:
		err = listTable(b, f, now, locks)
	}
	return cmp.Or(err, b.Flush())
}

func listData(w io.Writer, f Format, locks iter.Seq[api.Lock]) error {
	data := list{w: w, format: f}
	for k := range locks {
		if err := data.add(k); err != nil {
			return err
		}
	}
	return data.end()
}

func listNames(w *bufio.Writer, locks iter.Seq[api.Lock]) error {
	for k := range locks {
		if _, err := w.WriteString(terminal.Quote(k.Name) + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// column is one of a table.
type column struct {
	title string
	cell  func(k *api.Lock, now time.Time) string
	// most is how many columns of the terminal it may take, in a wide table too.
	most, wide int
}

func tableColumns(f Format) []column {
	const short = 1 << 10 // bounded by what it is
	all := []column{
		{"NAME", func(k *api.Lock, _ time.Time) string { return terminal.Quote(k.Name) }, 60, 120},
		{"STATE", func(k *api.Lock, _ time.Time) string { return k.State }, short, short},
		{"HOSTNAME", func(k *api.Lock, _ time.Time) string { return optional(k.Hostname) }, 40, 120},
		{"OWNER", func(k *api.Lock, _ time.Time) string { return optional(k.Owner) }, 30, 120},
		{"HELD", func(k *api.Lock, now time.Time) string { return held(k.LockedAt, now) }, short, short},
		{"ALERT", func(k *api.Lock, now time.Time) string { return relative(k.AlertAt, now) }, short, short},
		{"UNLOCK", func(k *api.Lock, now time.Time) string { return relative(k.AutoUnlockAt, now) }, short, short},
	}
	if f == Wide {
		all = append(all,
			column{"UUID", func(k *api.Lock, _ time.Time) string { return optional(k.UUID) }, short, short},
			column{"TOKEN", func(k *api.Lock, _ time.Time) string { return token(k.Token) }, short, short},
			column{"KEYS", func(k *api.Lock, _ time.Time) string { return strconv.Itoa(k.Keys) }, short, short})
		for i := range all {
			all[i].most = all[i].wide
		}
	}
	return all
}

// gap is between two columns.
const gap = 3

// listTable goes through all locks first for the widths.
func listTable(w *bufio.Writer, f Format, now time.Time, locks iter.Seq[api.Lock]) error {
	table := tableColumns(f)
	widths := make([]int, len(table))
	cells := make([]string, len(table))
	for i, c := range table {
		cells[i], widths[i] = c.title, len(c.title)
	}
	some := false
	for k := range locks {
		some = true
		for i, c := range table {
			widths[i] = max(widths[i], terminal.Columns(terminal.Truncate(c.cell(&k, now), c.most)))
		}
	}
	if !some {
		return nil
	}
	if err := writeRow(w, cells, widths); err != nil {
		return err
	}
	for k := range locks {
		for i, c := range table {
			cells[i] = terminal.Truncate(c.cell(&k, now), c.most)
		}
		if err := writeRow(w, cells, widths); err != nil {
			return err
		}
	}
	return nil
}

func writeRow(w *bufio.Writer, cells []string, widths []int) error {
	for i, cell := range cells {
		if i < len(cells)-1 {
			cell += strings.Repeat(" ", widths[i]-terminal.Columns(cell)+gap)
		}
		if _, err := w.WriteString(cell); err != nil {
			return err
		}
	}
	return w.WriteByte('\n')
}

// none stands for what there is not.
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

// held says for how long, by its owner's clock against ours: it may be negative.
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
