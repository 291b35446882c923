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
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// Rules tell what is worth an alert.
type Rules struct {
	// Warning and Critical are for the number of locks past their alert time.
	Warning, Critical Range
	// Undated is for the number of locks that are never removed automatically:
	// undated and malformed ones. It warns.
	Undated Range
	// Lock is the one lock to judge, instead of all; empty for all.
	Lock string
	// Forced is how long a forced unlock is a warning, 0 for not at all.
	Forced time.Duration
	// Hold is how long removals may be held back before that is a warning, 0 for
	// as long as it likes.
	Hold time.Duration
}

// Answer is what one daemon said.
type Answer struct {
	URL string
	// Err is why it said nothing; nothing else counts then.
	Err    error
	Status api.Status
	// Locks are some of those that are overdue, expired, undated or malformed.
	Locks []api.Lock
	// Lock is the one that was asked for, nil where there is none.
	Lock *api.Lock
	// Forced are the forced unlocks that this daemon did.
	Forced []api.Forced
}

// blind tells why an answer says nothing about the locks; "" if it does.
func (a Answer) blind() string {
	var words string
	switch {
	case a.Err != nil:
		return clean(a.Err.Error(), maxReason)
	case !a.Status.Ready:
		words = "has not listed the locks yet"
	case !a.Status.Etcd.Up:
		words = "does not see etcd"
	default:
		return ""
	}
	if why := clean(a.Status.Etcd.Error, maxReason); why != "" {
		words += " (" + why + ")"
	}
	return words
}

// said are the answers that came.
func said(answers []Answer) []Answer {
	return slices.DeleteFunc(slices.Clone(answers), func(a Answer) bool { return a.Err != nil })
}

// newest returns the answer of the daemon that sees most of etcd's history; all
// of them watch the same locks.
func newest(answers []Answer) (best Answer, ok bool) {
	for _, a := range answers {
		if a.blind() == "" && (!ok || a.Status.Etcd.Revision > best.Status.Etcd.Revision) {
			best, ok = a, true
		}
	}
	return best, ok
}

// Judge makes one Result of what all daemons of a deployment answered.
func Judge(rules Rules, answers []Answer) Result {
	j := &judgement{Rules: rules}
	came := said(answers)
	if other := slices.IndexFunc(came, func(a Answer) bool { return a.Status.Prefix != came[0].Status.Prefix }); other > 0 {
		return Result{State: Unknown, Text: fmt.Sprintf("%s and %s watch different prefixes: they need a check each",
			clean(came[0].URL, maxName), clean(came[other].URL, maxName))}
	}
	best, seen := newest(answers)
	switch {
	case !seen:
		j.unseen(answers)
	case rules.Lock != "":
		j.one(best)
	default:
		j.all(best)
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

// judgement collects a Result.
type judgement struct {
	Rules
	findings []finding
	data     []datum
	long     []string
}

func (j *judgement) find(state State, format string, args ...any) {
	j.findings = append(j.findings, finding{state, fmt.Sprintf(format, args...)})
}

// unseen is for when no daemon tells anything of the locks. One that refuses the
// question, as it does with a name that no lock can have, says that we are wrong.
func (j *judgement) unseen(answers []Answer) {
	state := Critical
	var why []string
	for _, a := range answers {
		var refused refusal
		if errors.As(a.Err, &refused) && refused.code == http.StatusBadRequest {
			state = Unknown
		}
		why = append(why, clean(a.URL, maxName)+" "+a.blind())
	}
	j.find(state, "nobody tells of the locks: %s", strings.Join(why, ", "))
}

// replicas warns of those that would be missed should the others fail, and whose
// forced unlocks are not known.
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
		j.find(Critical, "etcd raised %s: no owner can renew a lock", strings.Join(names, ", "))
	}
}

// dryRun is the hold that somebody asked for.
const dryRun = "dry_run"

// longest returns the hold of a daemon that began first, leaving out dry_run.
func longest(s api.Status) (first api.Hold, held bool) {
	for _, h := range s.Holds {
		if h.Hold != dryRun && (!held || h.Since.Before(first.Since)) {
			first, held = h, true
		}
	}
	return first, held
}

// holds warns where removals wait for too long. Any daemon removes what is due, so
// that they wait only while all are held.
func (j *judgement) holds(came []Answer) {
	var (
		hold api.Hold
		wait time.Duration
	)
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
	j.find(state, "nothing is removed for %s: %s (%s)", terminal.Duration(wait), clean(hold.Hold, maxName), clean(hold.Reason, maxReason))
}

// removal is a forced unlock, and how long ago it was by the clock of who did it.
type removal struct {
	api.Forced
	ago time.Duration
}

// forced warns of locks that were taken from their owners.
func (j *judgement) forced(came []Answer) {
	recent := j.recent(came)
	j.data = append(j.data, datum{label: "forced", value: len(recent), warn: Range{text: "0"}})
	if len(recent) == 0 {
		return
	}
	var names []string
	for _, r := range recent {
		name, by := clean(r.Name, maxName), holder(r.Hostname, r.Owner)
		names = append(names, fmt.Sprintf("%s (%s, %s ago)", name, by, terminal.Duration(r.ago)))
		j.long = append(j.long, fmt.Sprintf("%s: removed by force %s ago (%s); was held by %s", name, terminal.Duration(r.ago), clean(r.Trigger, maxName), by))
	}
	j.find(Warning, "%s in the last %s: %s", count(len(recent), "forced unlock"), terminal.Duration(j.Forced), list(names, len(names)))
}

// recent returns the forced unlocks that count, the newest first. Nobody held an
// orphan; and two URLs may lead to the same daemon.
func (j *judgement) recent(came []Answer) (all []removal) {
	type key struct {
		name     string
		revision int64
	}
	seen := make(map[key]bool)
	for _, a := range came {
		for _, f := range a.Forced {
			k, ago := key{f.Name, f.Revision}, a.Status.Now.Sub(f.At)
			if f.Trigger == "orphan" || ago > j.Forced || j.Lock != "" && f.Name != j.Lock || seen[k] {
				continue
			}
			seen[k] = true
			all = append(all, removal{f, ago})
		}
	}
	slices.SortStableFunc(all, func(a, b removal) int { return cmp.Compare(a.ago, b.ago) })
	return all
}

// holder names who holds a lock.
func holder(hostname, owner string) string {
	hostname, owner = clean(hostname, maxName), clean(owner, maxName)
	if hostname != "" && owner != "" {
		return owner + " on " + hostname
	}
	return cmp.Or(hostname, owner, "an unknown host")
}

// about is the line on a daemon.
func about(a Answer) string {
	url := clean(a.URL, maxName)
	if a.Err != nil {
		return url + ": " + a.blind()
	}
	s := a.Status
	words := []string{fmt.Sprintf("%s, version %s, mode %s", clean(s.Identity, maxName), clean(s.Version, maxName), clean(s.Mode, maxName))}
	if s.Leads {
		words = append(words, "leads")
	}
	if why := a.blind(); why != "" {
		words = append(words, why)
	} else {
		words = append(words, fmt.Sprintf("sees etcd at revision %d", s.Etcd.Revision))
	}
	for _, h := range s.Holds {
		words = append(words, fmt.Sprintf("held for %s: %s (%s)", terminal.Duration(s.Now.Sub(h.Since)), clean(h.Hold, maxName), clean(h.Reason, maxReason)))
	}
	return url + ": " + strings.Join(words, "; ")
}
