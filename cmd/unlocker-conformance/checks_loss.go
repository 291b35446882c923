package main

import (
	"syscall"
	"time"
)

func lossChecks() []check {
	return []check{
		{name: "lost-deadline", about: "a lock that is not renewed is lost before its deadline", run: checkLostDeadline},
		{name: "lost-unreachable", about: "a renewal that gets no answer gives up before the deadline", run: checkLostUnreachable},
		{name: "lost-suspended", about: "a process that was suspended past its deadline knows it at once", run: checkLostSuspended},
	}
}

// brief is a lock with a short patience.
func brief(name string, patience float64) command {
	c := lockCommand(name)
	c.AlertAfter, c.Patience = patience/2, patience
	return c
}

func (t *trial) lost(d *driver, a answer, wait float64) answer {
	return t.succeed(d, command{Op: "lost", UUID: a.UUID, Wait: wait})
}

func checkLostDeadline(t *trial) {
	const patience = 4.0
	d := t.driver()
	mine := t.succeed(d, brief(invoices, patience))
	f := t.fields(invoices)
	lockedAt, deadline := t.instant(f, "locked_at"), t.instant(f, "auto_unlock_at")
	t.require(!t.lost(d, mine, 0).Lost, "it answers that a lock is lost that it has just taken")
	a := t.lost(d, mine, 2*patience)
	t.require(a.Lost, "it has not noticed the loss %v after the deadline", a.at.Sub(deadline).Round(time.Millisecond))
	t.require(!a.at.After(deadline), "it noticed the loss %v after the deadline", a.at.Sub(deadline).Round(time.Millisecond))
	t.require(a.at.Sub(lockedAt) >= seconds(patience)/2, "it gave the lock up after %v of %v", a.at.Sub(lockedAt).Round(time.Millisecond), seconds(patience))
}

func checkLostUnreachable(t *trial) {
	const patience = 3.0 // less than the request timeout
	d := t.driver()
	mine := t.succeed(d, brief(invoices, patience))
	deadline := t.instant(t.fields(invoices), "auto_unlock_at")
	t.proxy.Blackhole()
	c := brief(invoices, patience)
	c.Op, c.Name, c.UUID, c.Purpose = "alive", "", mine.UUID, ""
	a := t.do(d, c)
	t.require(!a.OK, "alive answered %s while etcd was silent", a)
	t.require(!a.at.After(deadline), "alive answered %v after the deadline", a.at.Sub(deadline).Round(time.Millisecond))
	a = t.lost(d, mine, patience)
	t.require(a.Lost && !a.at.After(deadline), "it noticed the loss (%v) %v after the deadline", a.Lost, a.at.Sub(deadline).Round(time.Millisecond))
}

func checkLostSuspended(t *trial) {
	const patience = 6.0 // more than it takes to suspend it on a busy machine
	d := t.driver()
	mine := t.succeed(d, brief(invoices, patience))
	t.must(d.signal(syscall.SIGSTOP))
	t.pause(seconds(patience) + time.Second)
	query := t.begin(d, command{Op: "lost", UUID: mine.UUID})
	t.must(d.signal(syscall.SIGCONT))
	a := t.success(query)
	t.require(a.Lost, "it was suspended until after its deadline, and answers that the lock is not lost")
	c := brief("", patience)
	c.Op, c.UUID, c.Purpose = "alive", mine.UUID, ""
	t.refused(d, c, "lost")
}
