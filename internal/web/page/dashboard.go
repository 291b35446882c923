package page

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Dashboard is the page / with the locks that match a filter, the most urgent first.
type Dashboard struct {
	Status api.Status
	Filter Filter
	api.LockPage
}

func (Dashboard) template() string { return "locks" }

// Event returns the HTML of an event in the stream of the dashboard, as the data of a server-sent
// event: the parts of the page that are new, in the templates of the page.
func (p *Pages) Event(q api.Query, window api.LockPage, e api.Event, now time.Time) ([]byte, error) {
	v, name := Dashboard{Filter: Filter{Query: q}, LockPage: window}, e.Type
	switch e.Type {
	case api.EventLock:
		v.Locks = []api.Lock{*e.Lock}
	case api.EventGone:
		v.Locks = []api.Lock{{Name: e.Name}}
	case api.EventStatus:
		v.Status = *e.Status
	}
	html, err := p.execute(name, v, now)
	return bytes.ReplaceAll(bytes.TrimSpace(html), []byte("\n"), []byte("\ndata: ")), err
}

// Alarming names the states that need attention now, with the number of locks in each.
func (v Dashboard) Alarming() string {
	var all []string
	for _, state := range api.StatesByUrgency()[:2] {
		if n := v.Status.Locks[state]; n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(all, ", ")
}

// Total returns the number of locks in all states.
func (v Dashboard) Total() (n int) {
	for _, in := range v.Status.Locks {
		n += in
	}
	return n
}

// row is a lock in the table of the dashboard.
type row struct {
	document
	api.Lock
	Filter Filter
	// Heading is the group that begins with the lock, if one does, and has so many locks of the page.
	Heading string
	Count   int
}

// maxRows bounds the HTML of the rows, in bytes. As HTML, a name can be ten times as long.
const maxRows = 4 << 20

// Rows yields the rows of the dashboard. It ends early after maxRows.
func (d document) Rows(v Dashboard) iter.Seq[*row] {
	return func(yield func(*row) bool) {
		groups := map[string]int{}
		for _, l := range v.Locks {
			groups[v.Filter.groupOf(&l)]++
		}
		for i, l := range v.Locks {
			r := row{document: d, Lock: l, Filter: v.Filter}
			if group := v.Filter.groupOf(&l); group != "" && (i == 0 || group != v.Filter.groupOf(&v.Locks[i-1])) {
				r.Heading, r.Count = group, groups[group]
			}
			if d.html.Len() > maxRows || !yield(&r) {
				return
			}
		}
	}
}

// Link returns the path of the lock's page.
func (r row) Link() string { return r.document.Lock(r.Name) }

// Of returns a time of the lock by the daemon's clock.
func (r row) Of(t time.Time) moment { return r.At(r.Corrected(t)) }

// Place is the rank of the lock and its time by urgency. It is without the name, which follows in
// Urgency and may be anything.
func (r row) Place() string { return r.Urgency[:min(len(r.Urgency), 15)] }

// Awaited reports whether the due time says more than the deadline.
func (r row) Awaited() bool {
	late := r.Due.Sub(r.Corrected(r.AutoUnlockAt)) > 10*time.Second
	return !r.Due.IsZero() && (r.State == "orphaned" || r.State != "held" && late)
}

// Filter is what the dashboard was asked for.
type Filter struct {
	api.Query
	// Group is by what the rows are grouped: one of Groups.
	Group string
}

// Groups are the names of what rows can be grouped by.
func (Filter) Groups() []string { return []string{"", "owner", "hostname"} }

// groupOf returns the group of a lock; empty if there are no groups.
func (f Filter) groupOf(l *api.Lock) string {
	switch f.Group {
	case "owner":
		return cmp.Or(l.Owner, "no owner")
	case "hostname":
		return cmp.Or(l.Hostname, "no host")
	}
	return ""
}

// Arrange brings the locks of each group together. The group with the most urgent lock comes first.
func (f Filter) Arrange(locks []api.Lock) {
	first := map[string]int{}
	for i := range locks {
		if group := f.groupOf(&locks[i]); first[group] == 0 {
			first[group] = i + 1
		}
	}
	slices.SortStableFunc(locks, func(a, b api.Lock) int { return cmp.Compare(first[f.groupOf(&a)], first[f.groupOf(&b)]) })
}

// DefaultLimit is the number of locks on a page unless limit says otherwise.
const DefaultLimit = 100

// With returns the query of the filter with one of its parameters replaced.
func (f Filter) With(name, value string) string {
	f.After, f.ByUrgency = "", false
	values := f.Values()
	if f.Limit == DefaultLimit {
		values.Del("limit")
	}
	if f.Group != "" {
		values.Set("group", f.Group)
	}
	if values.Del(name); value != "" {
		values.Set(name, value)
	}
	return "?" + values.Encode()
}

// State returns the states of the filter as one parameter.
func (f Filter) State() string { return strings.Join(f.States, ",") }

// Is reports whether only this state is shown.
func (f Filter) Is(state string) bool { return slices.Equal(f.States, []string{state}) }

// Set reports whether the filter leaves out locks.
func (f Filter) Set() bool {
	return f.Silent || cmp.Or(f.State(), f.Contains, f.Hostname, f.Owner) != ""
}

// Limits are the numbers of rows to choose from.
func (f Filter) Limits() []int {
	limits := []int{DefaultLimit, 250, 1000}
	if !slices.Contains(limits, f.Limit) {
		limits = append(limits, f.Limit)
	}
	return limits
}

// notice is a line of the banner.
type notice struct {
	// Level is bad, warn or info; stale where the locks may be other ones now.
	Level       string
	Title, Text string
	// Command is what helps. Word precedes When.
	Command, Word string
	When          moment
	Flows         []api.DeadlockFlow
}

// thisReplica is the title where the configuration of the replica is the reason.
const thisReplica = "This replica removes no lock:"

// Notices returns what is wrong, or other than usual, the worst first.
func (d document) Notices(s api.Status) (all []notice) {
	if !s.Ready {
		all = append(all, notice{Level: "bad", Title: "The list is not complete:", Text: "the daemon has not read all locks and pauses yet."})
	}
	if !s.Etcd.Up {
		all = append(all, notice{"bad stale", "The connection to etcd is lost.", s.Etcd.Error, "", "the list is as of", d.At(s.Etcd.Progress), nil})
	}
	for _, h := range s.Holds {
		title := "No lock is removed:"
		if !h.Hold.Kind().Stops {
			title, h.Reason = thisReplica, h.Reason+"; others may"
		}
		all = append(all, notice{string(h.Hold.Kind().Severity), title, h.Reason, "", "since", d.At(h.Since), nil})
	}
	if s.Mode == verdict.Off {
		all = append(all, notice{Level: "info", Title: thisReplica, Text: "reaper.mode is off; others may"})
	}
	if s.Storm != nil {
		all = append(all, notice{"bad", "Many locks came due at once:", fmt.Sprintf("%s removed before it, %s more wait. Are their holders cut off from etcd? To keep the locks:",
			count(s.Storm.RemovedBefore), count(s.Storm.Delayed)), "unlocker pause --for 2h --reason WHY", "they wait until", d.At(s.Storm.Until), nil})
	}
	for _, deadlock := range s.Deadlocks {
		all = append(all, notice{"bad", "Deadlock:", count(len(deadlock.Flows)+deadlock.More) + " wait for each other", "", "the first of their locks is due",
			d.At(deadlock.Due), deadlock.Flows})
	}
	for _, p := range s.Pauses {
		if p.Match != "" {
			all = append(all, notice{"warn", "Removals are paused:", fmt.Sprintf("%s, by %s: %s", p.Match, p.By, p.Reason), "", "until", d.At(p.Until), nil})
		}
	}
	if len(s.Holds) > 0 && s.Backlog > 0 {
		all = append(all, notice{Level: "warn", Title: "Due and not removed: " + count(s.Backlog)})
	}
	return all
}

// count formats a number with a comma between thousands.
func count(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
