package output

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// History prints who held a lock, the newest holder first. With usual values, a table takes 80
// columns.
func History(w io.Writer, f Format, h api.History) error {
	return printAs(w, f, []string{h.Name}, h, func(b *bufio.Writer) {
		t := newTable(periodColumns(f, h.Now), true)
		t.gap = 2
		t.print(b, slices.Values(h.Periods), func(p *api.Period) { printEnd(b, p) })
	})
}

func periodColumns(f Format, now time.Time) []column[api.Period] {
	layout, maxHost := "01-02 15:04:05", 14
	if f == Wide {
		layout, maxHost = time.DateTime, unbounded
	}
	columns := []column[api.Period]{
		newColumn("ACQUIRED (UTC)", unbounded, func(p *api.Period) string { return acquired(p, layout) }),
		newColumn("HELD", unbounded, func(p *api.Period) string { return heldFor(p, now) }),
		newColumn("RENEWED", unbounded, func(p *api.Period) string { return strconv.FormatInt(p.Renewed(), 10) }),
		newColumn("TOKEN", unbounded, func(p *api.Period) string { return token(p.Token) }),
		newColumn("HOSTNAME", maxHost, func(p *api.Period) string { return optional(p.Hostname) }),
		newColumn("ENDED", unbounded, ended),
	}
	if f != Wide {
		return columns
	}
	return append(columns,
		newColumn("OWNER", unbounded, func(p *api.Period) string { return optional(p.Owner) }),
		newColumn("PURPOSE", 60, func(p *api.Period) string { return optional(p.Purpose) }),
		newColumn("MARGIN", unbounded, leastMargin),
		newColumn("REVISIONS", unbounded, revisions),
		newColumn("UUID", unbounded, func(p *api.Period) string { return optional(p.UUID) }))
}

func acquired(p *api.Period, layout string) string {
	if p.Acquired.At.IsZero() {
		return none
	}
	return p.Acquired.At.UTC().Format(layout) + off(p.ClockOffset)
}

func ended(p *api.Period) string {
	if p.Ended == nil {
		return none
	}
	return terminal.Quote(strings.ReplaceAll(p.Ended.How, "_", " "))
}

func revisions(p *api.Period) string {
	if p.Ended == nil {
		return fmt.Sprintf("%d-", p.Acquired.Revision)
	}
	return fmt.Sprintf("%d-%d", p.Acquired.Revision, p.Ended.Revision)
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
		} else if e.Replica != "" {
			text += " by replica " + terminal.Quote(e.Replica)
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

// HistoryNotes says what the words in a history mean, and what it cannot tell. asked reports whether a daemon has said what
// it knows.
func HistoryNotes(h api.History, asked bool) []string {
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
	if !asked && (used[api.EndRemoved] || used[api.EndLate]) {
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
