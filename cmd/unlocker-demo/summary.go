package main

import (
	"fmt"
	"strings"
)

// fact is something without which the story is not true.
type fact int

const (
	invoicesUnlocked fact = iota
	monthlyOverdue
	monthlyHeldAgain
	apiLogged
	apiDeleted
	apiCounted
	apiPassedOn
	warmupCounted
	warmupLeft
	nightlyMeasured
	nightlyLeft
	numFacts
)

func (f fact) String() string {
	return [...]string{
		invoicesUnlocked: invoices + ": renewed in time, never overdue, unlocked by its owner",
		monthlyOverdue:   monthly + ": overdue in the metrics, with its holder",
		monthlyHeldAgain: monthly + ": held again after its owner renewed it",
		apiLogged:        api + ": the record was logged before the removal, and the outcome after it",
		apiDeleted:       api + ": not removed before it was due, and then whole, in one transaction",
		apiCounted:       api + ": the forced unlock is counted in the metrics",
		apiPassedOn:      api + ": the worker that waited has the lock",
		warmupCounted:    warmup + ": counted as malformed",
		warmupLeft:       warmup + ": left alone",
		nightlyMeasured:  nightly + ": its host's clock, an hour behind, shows in the metrics",
		nightlyLeft:      nightly + ": not removed from its living owner, whatever the clocks say",
	}[f]
}

func (n *narrator) saw(f fact) { n.facts[f] = true }

// spoil notes something that should not have happened in the story, which is then
// untrue. Afterwards the audience may do as it likes.
func (n *narrator) spoil(what string) {
	if n.told {
		return
	}
	n.page.say("demo", "that should not have happened: "+what, bad)
	n.spoilt = append(n.spoilt, what)
}

// complete tells whether all there is to see was seen.
func (n *narrator) complete() bool {
	for _, seen := range n.facts {
		if !seen {
			return false
		}
	}
	return true
}

func (n *narrator) legend() {
	p := n.page
	p.text("unlocker demo: an etcd of its own, the real daemon beside it, and six simulated workers.")
	p.gap()
	for _, l := range [][2]string{
		{behaves, "behaves: it renews its lock every second, and unlocks when it is done"},
		{overruns, "takes longer than it said: people are told, then it renews"},
		{dies, "is killed and never renews: its lock is removed, and " + waits + " gets it"},
		{mistakes, "writes its times in milliseconds: nobody can tell when to remove that"},
		{lags, "has a clock that is an hour behind, and renews: its lock is not touched"},
	} {
		p.text(fmt.Sprintf("  %-*s  %s", whoWidth, l[0], l[1]))
	}
	p.gap()
	p.text("Each line below was seen: by a worker, in a watch on etcd, in /metrics, or in unlocker's log.")
	p.text("It takes about 20 seconds. Ctrl-C ends it at any time and leaves nothing behind.")
	p.gap()
}

// finish tells, once, what came of it all.
func (n *narrator) finish() {
	if n.told {
		return
	}
	n.told = true
	p := n.page
	p.gap()
	if n.cameTrue() == nil {
		p.say("demo", "that was the story, and all of it was seen:", good)
	} else {
		p.say("demo", fmt.Sprintf("not all of the story was seen within %v:", storyTime), bad)
	}
	for f, seen := range n.facts {
		mark, t := "✓ ", good
		if !seen {
			mark, t = "✗ ", bad
		}
		p.fold(strings.Repeat(" ", indent)+mark, fact(f).String(), t)
	}
	for _, what := range n.spoilt {
		p.fold(strings.Repeat(" ", indent)+"✗ ", what, bad)
	}
	p.detail("locks", counts(n.last.states))
	p.detail("removed", fmt.Sprintf("%v by force", n.last.forced))
	p.gap()
	if !n.once {
		n.invite()
	}
	p.text("Read on: README.md, docs/protocol.md (how to lock), docs/metrics.md (what to alert on)")
}

// invite says what to do while all is still up.
func (n *narrator) invite() {
	p, etcdctl := n.page, "etcdctl --endpoints="+n.places.etcd
	p.text("All stays up until Ctrl-C, and this window goes on telling. From another terminal:")
	p.gap()
	key := n.places.prefix + "try/"
	for _, c := range [][2]string{
		{"who was removed by force", "curl -s " + n.places.ops + "/metrics | grep ^unlocker_forced"},
		{"the whole record of it", "grep removing " + n.places.log},
		{"a lock of your own, in one transaction, that nobody renews", "(echo; echo put " + key + "uuid mine;"},
		{"", "echo put " + key + "locked_at $(date +%s); echo put " + key + "auto_unlock_at $(( $(date +%s) + 5 ));"},
		{"", "echo; echo) | " + etcdctl + " txn"},
		{"mend what " + mistakes + " wrote: due for more than five minutes, it is removed", etcdctl + " del " + n.places.prefix + warmup + "/locked_at"},
		{"", etcdctl + " del " + n.places.prefix + warmup + "/alert_at"},
		{"", etcdctl + " put " + n.places.prefix + warmup + "/auto_unlock_at $(( $(date +%s) - 300 ))"},
	} {
		if c[0] != "" {
			p.text("  # " + c[0])
		}
		p.text("  " + c[1])
	}
	p.gap()
}

// cameTrue returns nil where the story came true.
func (n *narrator) cameTrue() error {
	if !n.complete() || len(n.spoilt) > 0 {
		return errNotTrue
	}
	return nil
}

// close says goodbye once everything is gone, and returns what the demo ends
// with: err, or what became of the story.
func (n *narrator) close(err error) error {
	if err != nil {
		return err
	}
	n.page.gap()
	n.page.say("demo", "etcd, unlocker and the workers have ended; the temporary directory is gone", plain)
	switch {
	case !n.once:
		return nil
	case !n.told:
		return errInterrupted
	default:
		return n.cameTrue()
	}
}
