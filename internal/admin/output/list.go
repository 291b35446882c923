package output

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// Options say how List prints.
type Options struct {
	Format Format
	// At is the time that times are relative to.
	At time.Time
	// Explained adds what a daemon says to a table.
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
		newLockTable(o, terminal.Colored(w)).print(b, locks, nil)
	}
	return cmp.Or(err, b.Flush()) // b keeps the first error of a write
}

func newLockTable(o Options, colored bool) *table[api.Lock] {
	wide, limit := o.Format == Wide, o.Format.limit
	columns := []column[api.Lock]{
		newColumn("NAME", limit(60), func(l *api.Lock) string { return terminal.Quote(l.Name) }),
		newColumn("STATE", unbounded, func(l *api.Lock) string { return l.State }),
		newColumn("HOSTNAME", limit(40), func(l *api.Lock) string { return optional(l.Hostname) }),
		newColumn("OWNER", limit(30), func(l *api.Lock) string { return optional(l.Owner) }),
		newColumn("HELD", unbounded, func(l *api.Lock) string { return held(l.Corrected(l.LockedAt), o.At) }),
		newColumn("ALERT", unbounded, func(l *api.Lock) string { return relative(l.Corrected(l.AlertAt), o.At) }),
		newColumn("UNLOCK", unbounded, func(l *api.Lock) string { return relative(l.Corrected(l.AutoUnlockAt), o.At) + off(l.ClockOffset) }),
		newColumn("WAITERS", unbounded, func(l *api.Lock) string { return token(int64(l.Waiters)) }),
	}
	if colored {
		columns[1].color = func(l *api.Lock) terminal.Color { return colorOf(l.State) }
	}
	if wide {
		columns = append(columns,
			newColumn("UUID", unbounded, func(l *api.Lock) string { return optional(l.UUID) }),
			newColumn("TOKEN", unbounded, func(l *api.Lock) string { return token(l.Token) }),
			newColumn("KEYS", unbounded, func(l *api.Lock) string { return strconv.Itoa(l.Keys) }))
		for i, t := range new(api.Lock).Texts() {
			columns = append(columns, newColumn(strings.ToUpper(t.Title), 60, func(l *api.Lock) string { return optional(l.Texts()[i].Value) }))
		}
	}
	if o.Explained {
		columns = append(columns, newColumn("RENEWALS", unbounded, func(l *api.Lock) string { return cmp.Or(l.Sentence(o.At), none) }))
	}
	if wide && o.Explained {
		explanation := func(l *api.Lock) string { return cmp.Or(terminal.Text(l.Explanation), none) }
		columns = append(columns, newColumn("EXPLANATION", unbounded, explanation))
	}
	return newTable(columns, !o.NoHeaders)
}

// off says how far a clock is off, by which times are corrected.
func off(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return " (clock " + terminal.Clock(seconds) + ")"
}

// colorOf is the color of the word of a state: the worse the state, the more it is seen.
func colorOf(state string) terminal.Color {
	return map[string]terminal.Color{
		protocol.Expired.String(): terminal.Red, protocol.Overdue.String(): terminal.Yellow, protocol.Held.String(): terminal.Green,
		protocol.Malformed.String(): terminal.Magenta, protocol.Undated.String(): terminal.Magenta, protocol.Orphaned.String(): terminal.Magenta,
	}[state]
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

// nativeRow is a key that holds or waits.
type nativeRow struct {
	api.NativeKey
	name, role string
}

// Native prints the locks of etcd's own clients: in a table, a line for each key that holds or
// waits.
func Native(w io.Writer, o Options, list api.NativeList) error {
	limit := o.Format.limit(60)
	var names []string
	var rows []nativeRow
	for _, p := range list.Prefixes {
		for _, h := range p.Holders {
			names = append(names, h.Name)
			role := "holder"
			if h.Foreign {
				role = "blocked by " + terminal.Truncate(terminal.Quote(h.Key), limit)
			}
			rows = append(rows, nativeRow{h.NativeKey, h.Name, role})
			for i, waiter := range h.Waiters {
				rows = append(rows, nativeRow{waiter, h.Name, fmt.Sprintf("waiter %d", i+1)})
			}
		}
	}
	return printAs(w, o.Format, names, list, func(b *bufio.Writer) {
		newTable([]column[nativeRow]{
			newColumn("NAME", limit, func(r *nativeRow) string { return terminal.Quote(r.name) }),
			newColumn("ROLE", unbounded, func(r *nativeRow) string { return r.role }),
			newColumn("LEASE", unbounded, func(r *nativeRow) string { return r.Lease }),
			newColumn("TTL", unbounded, ttl),
			newColumn("TOKEN", unbounded, func(r *nativeRow) string { return strconv.FormatInt(r.Revision, 10) }),
			newColumn("VALUE", limit, func(r *nativeRow) string { return optional(r.Value) }),
		}, !o.NoHeaders).print(b, slices.Values(rows), nil)
	})
}

// ttl returns what remains of a lease, or why there is nothing to say.
func ttl(k *nativeRow) string {
	if k.LeaseState != api.LeaseAlive {
		return "lease " + k.LeaseState
	}
	return fmt.Sprintf("%ds of %ds", k.TTL, k.GrantedTTL)
}

// Deadlocks prints deadlocks in words.
func Deadlocks(w io.Writer, f Format, now time.Time, all []api.Deadlock) error {
	return printAs(w, f, nil, api.DeadlockList{Deadlocks: all}, func(b *bufio.Writer) {
		for i, d := range all {
			fmt.Fprintf(b, "Deadlock %d: %d flows wait for each other. Their first lock expires: %s\n", i+1, len(d.Flows)+d.More, cmp.Or(moment(d.Due, now), "never"))
			for _, flow := range d.Flows {
				fmt.Fprintf(b, "  %s\n", flow)
				if flow.Line != "" {
					fmt.Fprintf(b, "    taken at %s\n", terminal.Truncate(terminal.Quote(flow.Line), limitsOf(f).columns))
				}
			}
		}
	})
}

// Paused prints a pause that has begun.
func Paused(w io.Writer, prefix string, r api.Pause) error {
	_, err := fmt.Fprintf(w, "paused until %s: %s under %s is removed automatically\n",
		localAndUTC(r.Until), which(r.Match, "no lock", "no lock that matches "), terminal.Quote(prefix))
	return err
}

// Resumed prints which pause has ended, and whose it was.
func Resumed(w io.Writer, prefix string, p api.Pause) error {
	_, err := fmt.Fprintf(w, "resumed: %s under %s; it was paused until %s by %s: %s\n", which(p.Match, "all locks", "locks that match "),
		terminal.Quote(prefix), localAndUTC(p.Until), terminal.Quote(p.By), terminal.Quote(p.Reason))
	return err
}

// Pauses prints the pauses in force.
func Pauses(w io.Writer, f Format, now time.Time, all []api.Pause) error {
	var matches []string
	for _, p := range all {
		matches = append(matches, p.Match)
	}
	return printAs(w, f, matches, map[string]any{"pauses": all}, func(b *bufio.Writer) {
		newTable([]column[api.Pause]{
			newColumn("PAUSED", unbounded, func(p *api.Pause) string { return which(p.Match, "all locks", "") }),
			newColumn("UNTIL", unbounded, func(p *api.Pause) string { return cmp.Or(moment(p.Until, now), none) }),
			newColumn("BY", unbounded, func(p *api.Pause) string { return optional(p.By) }),
			newColumn("REASON", unbounded, func(p *api.Pause) string { return optional(p.Reason) }),
		}, true).print(b, slices.Values(all), nil)
	})
}

// which returns the words for all locks or, if there is a pattern, those for some and the pattern.
func which(match, all, some string) string {
	if match == "" {
		return all
	}
	return some + terminal.QuoteAlways(match)
}

// localAndUTC formats an instant in the time zone of this host and in UTC.
func localAndUTC(t time.Time) string {
	utc := terminal.Time(t)
	if local := t.Local().Format("2006-01-02 15:04:05 MST"); local != utc {
		return local + " (" + utc + ")"
	}
	return utc
}
