package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// Native prints the locks of etcd's own clients: in a table, a line for each key that holds or
// waits.
func Native(w io.Writer, o Options, list api.NativeList) (err error) {
	b := bufio.NewWriterSize(w, 64<<10)
	switch f := o.Format; {
	case f.hasTemplate():
		err = printTemplate(b, f, list)
	case f == JSON, f == YAML:
		err = printData(b, f, list)
	case f == Name:
		for _, p := range list.Prefixes {
			for _, h := range p.Holders {
				fmt.Fprintln(b, terminal.Quote(h.Name))
			}
		}
	default:
		printRows(b, nativeRows(o, list))
	}
	return cmp.Or(err, b.Flush()) // b keeps the first error of a write
}

// nativeRows returns the cells of a table, and none if nothing is held.
func nativeRows(o Options, list api.NativeList) (rows [][]string) {
	if !o.NoHeaders {
		rows = [][]string{{"NAME", "ROLE", "LEASE", "TTL", "TOKEN", "VALUE"}}
	}
	limit := 60
	if o.Format == Wide {
		limit = 120
	}
	add := func(name, role string, k api.NativeKey) {
		rows = append(rows, []string{
			terminal.Truncate(terminal.Quote(name), limit), role, k.Lease, ttl(k), strconv.FormatInt(k.Revision, 10),
			terminal.Truncate(optional(k.Value), limit),
		})
	}
	empty := true
	for _, p := range list.Prefixes {
		for _, h := range p.Holders {
			role := "holder"
			if h.Foreign {
				role = "blocked by " + terminal.Truncate(terminal.Quote(h.Key), limit)
			}
			empty = false
			add(h.Name, role, h.NativeKey)
			for i, waiter := range h.Waiters {
				add(h.Name, fmt.Sprintf("waiter %d", i+1), waiter)
			}
		}
	}
	if empty {
		return nil
	}
	return rows
}

// ttl returns what remains of a lease, or why there is nothing to say.
func ttl(k api.NativeKey) string {
	if k.LeaseState != api.LeaseAlive {
		return "lease " + k.LeaseState
	}
	return fmt.Sprintf("%ds of %ds", k.TTL, k.GrantedTTL)
}

func printRows(w *bufio.Writer, rows [][]string) {
	const gap = 3
	widths := widthsOf(rows)
	for _, cells := range rows {
		printRow(w, cells, widths, gap)
	}
}

// widthsOf returns the columns of the terminal that the widest cell of each column takes.
func widthsOf(rows [][]string) (widths []int) {
	for _, cells := range rows {
		for i, cell := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], terminal.Columns(cell))
		}
	}
	return widths
}

func printRow(w *bufio.Writer, cells []string, widths []int, gap int) {
	last := len(cells) - 1
	for i, cell := range cells[:last] {
		fmt.Fprint(w, cell, strings.Repeat(" ", widths[i]-terminal.Columns(cell)+gap))
	}
	fmt.Fprintln(w, cells[last])
}
