// Package check queries daemons about themselves and their locks, through package client,
// and turns the answers into the result of a Nagios plugin: one of four states, a line of
// text with performance data, and more lines on request.
//
// It guarantees:
//
//   - OK means that at least one daemon knows all locks at this moment and that no rule
//     is violated. A daemon that does not answer, has not listed the locks yet, or cannot
//     reach etcd never makes a result OK.
//   - The answers of a daemon count together or not at all: if one of several requests
//     fails, its other answers are not used.
//   - The output is printable text of at most 8,000 bytes. No name of a lock or host can
//     end the line, begin the performance data, or reach a shell.
//
// It does not guarantee that forced unlocks are complete: of those whose record could not be written only the daemon
// knows that did them, until it restarts.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/client"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// Rules define what is worth an alert.
type Rules struct {
	// Warning and Critical apply to the number of overdue and expired locks.
	Warning, Critical Range
	// Undated applies to the number of undated and malformed locks, which are never
	// removed automatically. It warns.
	Undated Range
	// Lock is the only lock to check; empty for all.
	Lock string
	// Forced is for how long a forced unlock is a warning; 0 for never.
	Forced time.Duration
	// Hold is for how long removals may be on hold without a warning; 0 for any time.
	Hold time.Duration
}

// Answer is the answer of one daemon.
type Answer struct {
	URL string
	// Err is why there is no answer; the other fields are not used then.
	Err    error
	Status api.Status
	// Locks are overdue, expired, undated or malformed locks, up to a limit.
	Locks []api.Lock
	// Lock is the lock that was asked for; nil if it does not exist.
	Lock *api.Lock
	// Forced are the recent forced unlocks of this daemon.
	Forced []api.Forced
}

// blind returns why the daemon does not report on the locks; "" if it does.
func (a Answer) blind() (words string) {
	switch {
	case a.Err != nil:
		return clean(a.Err.Error(), maxReason)
	case !a.Status.Ready:
		words = "has not listed the locks yet"
	case !a.Status.Etcd.Up:
		words = "cannot reach etcd"
	default:
		return ""
	}
	if why := clean(a.Status.Etcd.Error, maxReason); why != "" {
		words += " (" + why + ")"
	}
	return words
}

// Judge returns the Result of the answers of all daemons of a deployment.
func Judge(rules Rules, answers []Answer) Result {
	j := &judgement{Rules: rules}
	came := slices.DeleteFunc(slices.Clone(answers), func(a Answer) bool { return a.Err != nil })
	if other := slices.IndexFunc(came, func(a Answer) bool { return a.Status.Prefix != came[0].Status.Prefix }); other > 0 {
		return Result{State: Unknown, Text: fmt.Sprintf("%s and %s watch different prefixes: check them separately",
			clean(came[0].URL, maxName), clean(came[other].URL, maxName))}
	}
	// All daemons watch the same locks: the newest of those that report on them comes first.
	seeing := slices.DeleteFunc(slices.Clone(came), func(a Answer) bool { return a.blind() != "" })
	slices.SortStableFunc(seeing, func(a, b Answer) int { return cmp.Compare(b.Status.Etcd.Revision, a.Status.Etcd.Revision) })
	switch {
	case len(seeing) == 0:
		j.unseen(answers)
	case rules.Lock != "":
		j.one(seeing[0])
	default:
		j.all(seeing[0])
		j.replicas(answers)
		j.alarms(came)
		j.holds(came)
	}
	if rules.Forced > 0 && len(came) > 0 {
		j.forced(came)
	}
	for _, a := range answers {
		j.long = append(j.long, about(a))
	}
	state, text := sum(j.findings)
	return Result{State: state, Text: text, Long: j.long, data: j.data}
}

type judgement struct {
	Rules
	findings []finding
	data     []datum
	long     []string
}

func (j *judgement) find(state State, format string, args ...any) {
	j.findings = append(j.findings, finding{state, fmt.Sprintf(format, args...)})
}

// unseen is for when no daemon reports on the locks. If one refuses the request, as with
// an invalid lock name, the command line is wrong.
func (j *judgement) unseen(answers []Answer) {
	state := Critical
	var why []string
	for _, a := range answers {
		if refused, is := errors.AsType[client.Refusal](a.Err); is && refused.Code == http.StatusBadRequest {
			state = Unknown
		}
		why = append(why, clean(a.URL, maxName)+" "+a.blind())
	}
	j.find(state, "no daemon reports on the locks: %s", strings.Join(why, ", "))
}

// replicas warns of daemons that do not report: there is less redundancy, and their
// forced unlocks are unknown.
func (j *judgement) replicas(answers []Answer) {
	for _, a := range answers {
		if why := a.blind(); why != "" {
			j.find(Warning, "%s %s", clean(a.URL, maxName), why)
		}
	}
}

func (j *judgement) alarms(came []Answer) {
	var names []string
	for _, a := range came {
		for _, name := range a.Status.Etcd.Alarms {
			names = append(names, clean(name, maxName))
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > 0 {
		j.find(Critical, "etcd raised %s: no holder can renew its lock", strings.Join(names, ", "))
	}
}

// longest returns the hold of a daemon that began first, of those that stop removals.
func longest(s api.Status) (first api.Hold, held bool) {
	for _, h := range s.Holds {
		if h.Hold.Kind().Stops && (!held || h.Since.Before(first.Since)) {
			first, held = h, true
		}
	}
	return first, held
}

// holds warns if removals have been on hold for too long. Any daemon removes locks that
// are due, so removals are on hold only while all daemons have a hold.
func (j *judgement) holds(came []Answer) {
	var hold api.Hold
	var wait time.Duration
	for i, a := range came {
		h, held := longest(a.Status)
		if !held {
			return
		}
		if d := a.Status.Now.Sub(h.Since); i == 0 || d < wait {
			hold, wait = h, d
		}
	}
	state := OK
	if j.Hold > 0 && wait > j.Hold {
		state = Warning
	}
	j.find(state, "removals are on hold for %s: %s (%s)", terminal.Duration(wait), clean(string(hold.Hold), maxName), clean(hold.Reason, maxReason))
}

func (j *judgement) forced(came []Answer) {
	now, recent := came[0].Status.Now, j.recent(came)
	j.data = append(j.data, datum{label: "forced", value: len(recent), warn: Range{text: "0"}})
	if len(recent) == 0 {
		return
	}
	var names []string
	for _, r := range recent {
		ago := terminal.Duration(now.Sub(r.At))
		name, by := clean(r.Name, maxName), holder(r.Hostname, r.Owner)
		names = append(names, fmt.Sprintf("%s (%s, %s ago)", name, by, ago))
		who := clean(cmp.Or(r.Replica, "an unknown replica"), maxName)
		j.long = append(j.long, fmt.Sprintf("%s: force-unlocked %s ago by %s (%s); was held by %s", name, ago, who, clean(string(r.Trigger), maxName), by))
	}
	j.find(Warning, "%s in the last %s: %s", count(len(recent), "forced unlock"), terminal.Duration(j.Forced), list(names, len(names)))
}

// recent returns the forced unlocks to warn of, newest first: of locks that expired, since an
// orphan had no holder, and a user knows of a manual unlock. Their times are according to the clock
// of the first daemon. Two URLs may lead to the same one.
func (j *judgement) recent(came []Answer) (all []api.Forced) {
	type key struct {
		name     string
		revision int64
	}
	seen := make(map[key]bool)
	for _, a := range came {
		for _, f := range a.Forced {
			k, ago := key{f.Name, f.Revision}, a.Status.Now.Sub(f.At)
			if f.Trigger != verdict.Expiry && f.Trigger != verdict.Presumed || ago > j.Forced || j.Lock != "" && f.Name != j.Lock || seen[k] {
				continue
			}
			seen[k] = true
			f.At = came[0].Status.Now.Add(-ago)
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b api.Forced) int { return b.At.Compare(a.At) })
	return all
}

func holder(hostname, owner string) string {
	hostname, owner = clean(hostname, maxName), clean(owner, maxName)
	if hostname != "" && owner != "" {
		return owner + " on " + hostname
	}
	return cmp.Or(hostname, owner, "an unknown host")
}

// about returns the line on a daemon.
func about(a Answer) string {
	const maxPauses = 5 // how many pauses the line on a daemon names
	url := clean(a.URL, maxName)
	if a.Err != nil {
		return url + ": " + a.blind()
	}
	s := a.Status
	words := []string{fmt.Sprintf("%s, version %s, mode %s", clean(s.Identity, maxName), clean(s.Version, maxName), clean(s.Mode, maxName))}
	if s.Leads {
		words = append(words, "leader")
	}
	if why := a.blind(); why != "" {
		words = append(words, why)
	} else {
		words = append(words, fmt.Sprintf("etcd revision %d", s.Etcd.Revision))
	}
	for _, h := range s.Holds {
		words = append(words, fmt.Sprintf("on hold for %s: %s (%s)", terminal.Duration(s.Now.Sub(h.Since)), clean(string(h.Hold), maxName), clean(h.Reason, maxReason)))
	}
	for i, p := range s.Pauses {
		if i == maxPauses {
			words = append(words, fmt.Sprintf("and %d more pauses", len(s.Pauses)-i))
			break
		}
		what := "all locks"
		if p.Match != "" {
			what = clean(p.Match, maxName)
		}
		words = append(words, fmt.Sprintf("removal of %s paused until %s by %s: %s",
			what, p.Until.UTC().Format(time.RFC3339), clean(p.By, maxName), clean(p.Reason, maxReason)))
	}
	return url + ": " + strings.Join(words, "; ")
}
