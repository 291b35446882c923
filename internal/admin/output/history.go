package output

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/admin"
	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// History prints who held a lock, the newest holder first. With usual values, a table takes 80
// columns.
func History(w io.Writer, f Format, h admin.History) error {
	return printOne(w, f, h.Name, h, func(b *bufio.Writer) {
		rows := [][]string{periodTitles(f)}
		for i := range h.Periods {
			rows = append(rows, periodCells(f, h.Now, &h.Periods[i]))
		}
		const gap = 2
		widths := widthsOf(rows)
		for i, cells := range rows {
			printRow(b, cells, widths, gap)
			if i > 0 {
				printEnd(b, &h.Periods[i-1])
			}
		}
	})
}

func periodTitles(f Format) []string {
	titles := []string{"ACQUIRED (UTC)", "HELD", "RENEWED", "TOKEN", "HOSTNAME", "ENDED"}
	if f == Wide {
		titles = append(titles, "OWNER")
		for _, t := range new(api.Period).Texts() {
			titles = append(titles, strings.ToUpper(t.Title))
		}
		titles = append(titles, "MARGIN", "REVISIONS", "UUID")
	}
	return titles
}

func periodCells(f Format, now time.Time, p *api.Period) []string {
	const maxName, maxText = 14, 60
	acquired, ended, until := none, none, ""
	if !p.Acquired.At.IsZero() {
		acquired = p.Acquired.At.UTC().Format("01-02 15:04:05")
		if f == Wide {
			acquired = p.Acquired.At.UTC().Format(time.DateTime)
		}
	}
	if p.Ended != nil {
		ended = terminal.Quote(strings.ReplaceAll(p.Ended.How, "_", " "))
		until = strconv.FormatInt(p.Ended.Revision, 10)
	}
	renewed := strconv.FormatInt(p.Renewed(), 10)
	cells := []string{acquired, heldFor(p, now), renewed, token(p.Token), optional(p.Hostname), ended}
	if f != Wide {
		cells[4] = terminal.Truncate(cells[4], maxName)
		return cells
	}
	cells = append(cells, optional(p.Owner))
	for _, t := range p.Texts() {
		cells = append(cells, terminal.Truncate(optional(t.Value), maxText))
	}
	return append(cells, leastMargin(p),
		fmt.Sprintf("%d-%s", p.Acquired.Revision, until), optional(p.UUID))
}

// heldFor returns for how long the lock was held: exactly, or between which durations.
func heldFor(p *api.Period, now time.Time) string {
	since := p.Acquired.At
	switch e := p.Ended; {
	case since.IsZero():
		return none
	case e == nil:
		return held(since, now)
	case !e.At.IsZero():
		return held(since, e.At)
	case e.Before.IsZero():
		return ">=" + held(since, e.After)
	case held(since, e.After) == held(since, e.Before):
		return held(since, e.Before)
	case e.After.Equal(since):
		return "<=" + held(since, e.Before)
	default:
		return held(since, e.After) + ".." + held(since, e.Before)
	}
}

// leastMargin returns the least share of the patience that a renewal left.
func leastMargin(p *api.Period) string {
	least := p.LeastMargin()
	if least == nil {
		return none
	}
	return fmt.Sprintf("%.0f%%", 100**least)
}

// printEnd prints what is known about an end beyond how it was.
func printEnd(w *bufio.Writer, p *api.Period) {
	e := p.Ended
	if e == nil {
		return
	}
	line := func(text string) { fmt.Fprintf(w, "    %s\n", terminal.Truncate(text, 2*textColumns)) }
	if !e.At.IsZero() {
		text := "ended " + terminal.Time(e.At)
		if e.Who != "" {
			text += " by " + terminal.Quote(e.Who)
		}
		if e.Reason != "" {
			text += ": " + terminal.Quote(e.Reason)
		}
		line(text)
	}
	if e.Leftovers > 0 {
		line(fmt.Sprintf("without its uuid, %d of its fields stayed", e.Leftovers))
	}
}

// HistoryNotes says what the words in a history mean, and what it cannot tell.
func HistoryNotes(h admin.History) []string {
	used := make(map[string]bool)
	for _, p := range h.Periods {
		if p.Ended != nil {
			used[p.Ended.How] = true
		}
	}
	var notes []string
	for _, word := range []struct{ how, note string }{
		{api.EndReleased, "released: deleted before its deadline, by its holder or another client; etcd does not record which"},
		{api.EndRemoved, "removed: deleted; no time shows whether that was before its deadline, and etcd does not keep by whom"},
		{api.EndLate, "removed late: deleted after its deadline; it is not known by whom"},
		{api.EndOverwritten, "overwritten: another uuid was put in its place; it was neither released nor removed"},
	} {
		if used[word.how] {
			notes = append(notes, word.note)
		}
	}
	if h.Asked == "" && (used[api.EndRemoved] || used[api.EndLate]) {
		notes = append(notes, "a daemon may know more: --url asks one")
	}
	switch {
	case h.Compacted:
		notes = append(notes, fmt.Sprintf("etcd was compacted: what was before revision %d cannot be known", h.FromRevision))
	case h.Truncated:
		notes = append(notes, fmt.Sprintf("revisions before %d were not read: see --limit and --timeout", h.FromRevision))
	}
	if h.Incomplete != "" {
		notes = append(notes, terminal.Text(h.Incomplete))
	}
	return notes
}
