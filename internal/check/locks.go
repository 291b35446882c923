package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// The states of locks, as the API spells them.
const (
	held      = "held"
	overdue   = "overdue"
	expired   = "expired"
	undated   = "undated"
	malformed = "malformed"
	orphaned  = "orphaned"
)

func (j *judgement) all(a Answer) {
	late := a.Status.Locks[overdue] + a.Status.Locks[expired]
	j.data = append(j.data, datum{label: "overdue", value: late, warn: j.Warning, crit: j.Critical})
	total := 0
	for _, s := range api.States() {
		n := a.Status.Locks[s]
		j.data = append(j.data, datum{label: "locks_" + s, value: n})
		if s != orphaned {
			total += n
		}
	}
	j.data = append(j.data, datum{label: "backlog", value: a.Status.Backlog})

	j.late(a, late, total)
	j.kept(a)
	if mode := a.Status.Mode; mode != "enforce" {
		j.find(OK, "removals are disabled: mode %s", clean(mode, maxName))
	}
}

// late checks the number of overdue and expired locks, and lists those that are known,
// the longest overdue first.
func (j *judgement) late(a Answer, late, total int) {
	state := OK
	switch {
	case j.Critical.Alerts(float64(late)):
		state = Critical
	case j.Warning.Alerts(float64(late)):
		state = Warning
	}
	if late == 0 {
		j.find(state, "%s, none overdue", count(total, "lock"))
		return
	}
	locks := inState(a.Locks, overdue, expired)
	slices.SortStableFunc(locks, func(a, b api.Lock) int { return since(a).Compare(since(b)) })
	var names []string
	for _, l := range locks {
		names = append(names, fmt.Sprintf("%s (%s, %s)", clean(l.Name, maxName), holder(l.Hostname, l.Owner), terminal.Duration(a.Status.Now.Sub(since(l)))))
		j.long = append(j.long, describe(l, a.Status.Now))
	}
	text := fmt.Sprintf("%d of %s overdue", late, count(total, "lock"))
	if known := list(names, late); known != "" {
		text += ": " + known
	}
	j.find(state, "%s", text)
}

// kept checks the number of locks that are never removed automatically.
func (j *judgement) kept(a Answer) {
	no, bad := a.Status.Locks[undated], a.Status.Locks[malformed]
	state := OK
	if j.Undated.Alerts(float64(no + bad)) {
		state = Warning
	}
	for _, l := range inState(a.Locks, undated, malformed) {
		j.long = append(j.long, describe(l, a.Status.Now))
	}
	if state == OK && no+bad == 0 {
		return
	}
	j.find(state, "%s never removed automatically (%d undated, %d malformed)", count(no+bad, "lock"), no, bad)
}

func inState(locks []api.Lock, states ...string) []api.Lock {
	return slices.DeleteFunc(slices.Clone(locks), func(l api.Lock) bool { return !slices.Contains(states, l.State) })
}

// since returns the time at which a lock became overdue, by the daemon's clock.
func since(l api.Lock) time.Time {
	return l.Corrected(cmp.Or(l.AlertAt, l.AutoUnlockAt))
}

func describe(l api.Lock, now time.Time) string {
	words := []string{clean(l.State, maxName)}
	if at := since(l); !at.IsZero() && now.After(at) {
		words[0] += ", " + terminal.Duration(now.Sub(at)) + " past its alert time"
	}
	words = append(words, "held by "+holder(l.Hostname, l.Owner))
	if !l.LockedAt.IsZero() {
		words[1] += " since " + l.Corrected(l.LockedAt).UTC().Format(time.RFC3339)
	}
	for _, sentence := range []string{l.Sentence(now), l.Explanation} {
		if sentence != "" {
			words = append(words, clean(sentence, maxExplanation))
		}
	}
	return clean(l.Name, maxName) + ": " + strings.Join(words, "; ")
}

func (j *judgement) one(a Answer) {
	name, now := clean(j.Lock, maxName), a.Status.Now
	if a.Lock == nil || a.Lock.State == orphaned {
		j.times(0, 0, 0)
		j.find(OK, "%s is not held", name)
		return
	}
	l := *a.Lock
	var age, late time.Duration
	if !l.LockedAt.IsZero() {
		age = max(0, now.Sub(l.Corrected(l.LockedAt)))
	}
	if at := since(l); !at.IsZero() {
		late = max(0, now.Sub(at))
	}
	j.times(1, age, late)
	j.long = append(j.long, describe(l, now))
	by := fmt.Sprintf("held by %s for %s", holder(l.Hostname, l.Owner), terminal.Duration(age))
	switch l.State {
	case held:
		j.find(OK, "%s is %s", name, by)
	case overdue:
		j.find(Warning, "%s is overdue by %s, %s", name, terminal.Duration(late), by)
	case expired:
		j.find(Critical, "%s expired %s ago and still exists, %s", name, terminal.Duration(now.Sub(l.Corrected(l.AutoUnlockAt))), by)
	case undated:
		j.find(Warning, "%s is undated and never removed automatically, %s", name, by)
	case malformed:
		j.find(Warning, "%s is malformed and never removed automatically", name)
	default:
		j.find(Unknown, "%s is in a state that this version does not know: %s", name, clean(l.State, maxName))
	}
}

// times adds the performance data of a single lock.
func (j *judgement) times(n int, age, late time.Duration) {
	j.data = append(j.data,
		datum{label: "held", value: n},
		datum{label: "age", value: int(age / time.Second), unit: "s"},
		datum{label: "past_alert", value: int(late / time.Second), unit: "s"})
}

// Ask queries all daemons of a client concurrently for what the rules need. It returns
// one Answer for each URL, with an error if the daemon did not answer within the timeout
// or before ctx was done.
func Ask(ctx context.Context, c *client.Client, rules Rules) []Answer {
	answers := make([]Answer, c.Len())
	c.Each(ctx, func(ctx context.Context, i int, d client.Daemon) {
		answers[i] = Answer{URL: d.URL}
		answers[i].Err = query(ctx, d, rules, &answers[i])
	})
	return answers
}

func query(ctx context.Context, d client.Daemon, rules Rules, a *Answer) (err error) {
	if a.Status, err = d.Status(ctx); err != nil {
		return err
	}
	switch {
	case rules.Lock == "":
		err = locks(ctx, d, a)
	case a.blind() == "": // the daemon reads the lock from etcd
		var detail *api.LockDetail
		if detail, err = d.Lock(ctx, rules.Lock); detail != nil {
			a.Lock = &detail.Lock
		}
	}
	if err != nil || rules.Forced == 0 {
		return err
	}
	a.Forced, err = d.Forced(ctx, "", 500)
	return err
}

// locks queries the locks to name in the output, if there are any.
func locks(ctx context.Context, d client.Daemon, a *Answer) error {
	for _, states := range [][]string{{overdue, expired}, {undated, malformed}} {
		if a.Status.Locks[states[0]]+a.Status.Locks[states[1]] == 0 {
			continue
		}
		page, err := d.Locks(ctx, api.Query{States: states, Limit: 200})
		if err != nil {
			return err
		}
		a.Locks = append(a.Locks, page.Locks...)
	}
	return nil
}
