package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

// narrator tells what was seen, and keeps the facts that the story is made of.
// One goroutine runs it, and only that one writes.
type narrator struct {
	options
	page   *page
	places places
	locks  map[string]*seen

	last    *sample
	late    map[string]bool // told that they are overdue
	expired map[string]bool // told that they have expired

	facts  [numFacts]bool
	spoilt []string // what should not have been seen
	told   bool     // the story is over
}

func newNarrator(o options, start time.Time) *narrator {
	return &narrator{
		options: o,
		page:    &page{out: o.out, colour: o.colour, start: start},
		locks:   map[string]*seen{},
		last:    &sample{},
		late:    map[string]bool{},
		expired: map[string]bool{},
	}
}

// run tells events until ctx is done, the story is over with once, or nobody
// can be told any more.
func (n *narrator) run(ctx context.Context, events <-chan event) {
	over := time.NewTimer(storyTime - time.Since(n.page.start))
	defer over.Stop()
	closing := false
	for n.page.err == nil {
		select {
		case e := <-events:
			e.tell(n)
		case <-over.C:
			n.finish()
		case <-ctx.Done():
			return
		}
		if n.complete() && !closing {
			closing = true
			over.Reset(lull)
		}
		if n.told && n.once {
			return
		}
	}
}

// verbatim passes the daemon's log on. An error there ends nothing.
func (n *narrator) verbatim(line string) {
	if n.verbose {
		_, _ = io.WriteString(n.log, line)
	}
}

// said is what a worker tells of itself.
type said struct {
	who, what string
	tone      tone
}

func (s said) tell(n *narrator) { n.page.say(s.who, s.what, s.tone) }

// taken tells of locks that are not of the story: somebody tries something.
func (n *narrator) taken(c *change, s *seen) {
	host := s.fields[lock.FieldHostname.String()]
	if !ours(c.name) {
		n.page.say("etcd", fmt.Sprintf("%s was taken by %s, fencing token %d", c.name, or(host), c.token), plain)
	}
	if c.name == api && host == waits && n.facts[apiDeleted] {
		n.saw(apiPassedOn)
	}
}

// deleted tells how a lock went, from the keys it had before.
func (n *narrator) deleted(c *change, s *seen, had int, deadline time.Time, announced bool) {
	if len(s.fields) > 0 {
		n.page.say("etcd", fmt.Sprintf("%s lost %d of %d keys at revision %d", c.name, len(c.deleted), had, c.revision), warn)
	} else {
		n.page.say("etcd", fmt.Sprintf("%s: all %d keys deleted at once, at revision %d", c.name, had, c.revision), faint)
	}
	whole := len(s.fields) == 0
	switch {
	case announced && deadline.IsZero(), announced && c.at.Before(deadline.Add(n.places.grace)):
		n.spoil(c.name + " was removed before it was due")
	case c.name == api && announced && whole:
		n.saw(apiDeleted)
	case c.name == invoices && !announced && whole && s.renewals >= 5:
		n.saw(invoicesUnlocked)
	}
	if announced && c.name != api && ours(c.name) {
		n.spoil(c.name + " was removed by force")
	}
}

func ours(name string) bool {
	return slices.Contains([]string{invoices, monthly, api, warmup, nightly}, name)
}
