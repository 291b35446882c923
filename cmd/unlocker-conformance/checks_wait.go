package main

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func lockWait(wait float64) command {
	c := lockCommand(invoices)
	c.Wait = wait
	return c
}

const handOff = 1500 * time.Millisecond // within which a free lock must be taken

// waiting starts a client that waits for the lock, which another holds, and returns when it
// has tried once.
func (t *trial) waiting(wait float64) *pending {
	p := t.driver().begin(lockWait(wait))
	t.writes(p)
	return p
}

// released requires that a waiter gets the lock within a limit from now on.
func (t *trial) released(p *pending, limit time.Duration) answer {
	t.require(t.within(limit, p.answered), "the waiter did not take the lock within %v after it was free", limit)
	a := t.success(p)
	name := p.c.Name
	for i := range p.c.Slots {
		if slot := fmt.Sprint(p.c.Name, "/", i); t.fields(slot).text("uuid") == a.UUID {
			name = slot
		}
	}
	t.fresh(name, a.grant)
	return a
}

func checkWait(t *trial) {
	const idle, tolerated, ttl = 5 * time.Second, 3, 10 // the requests keep a lease of 10 s
	t.take(invoices)
	p := t.waiting(60)
	t.pause(time.Second) // the watch begins
	from := time.Now()
	t.pause(idle)
	sent := len(t.requests(from))
	t.require(sent <= tolerated, "it sent %d requests within %v while it waited", sent, idle)
	for _, ticket := range t.queue() {
		lease, err := t.etcd.TimeToLive(t.ctx, clientv3.LeaseID(ticket.Lease))
		t.must(err)
		t.require(lease.TTL >= ttl/2 && lease.TTL <= ttl, "the lease of its ticket ends in %d s", lease.TTL)
	}
	t.must(t.remove(invoices))
	t.released(p, handOff)
}

func checkWaitTimeout(t *trial) {
	const wait = 2.0
	other := t.take(invoices)
	p := t.waiting(wait)
	a := t.answer(p)
	t.require(!a.OK && a.Error == "held" && a.Holder["uuid"] == other.text("uuid"), "lock answered %s, with the holder %v", a, a.Holder)
	t.require(a.took() > seconds(wait)*9/10 && a.took() < seconds(wait)+handOff, "it was to wait %v, but waited %v", seconds(wait), a.took())
	t.untouched(invoices, other)
}

// checkWaitAfter releases the lock immediately before a waiter begins to watch.
func checkWaitAfter(t *trial, then func() error) {
	t.take(invoices)
	met := t.surround(watches, func() error { return errors.Join(t.remove(invoices), then()) }, nothing)
	t.released(t.waiting(10), handOff+slack)
	t.must(met())
}

func checkWaitCompacted(t *trial) {
	checkWaitAfter(t, func() error {
		r, err := t.etcd.Put(t.ctx, "/conformance/other", "x")
		if err != nil {
			return err
		}
		_, err = t.etcd.Compact(t.ctx, r.Header.Revision, clientv3.WithCompactPhysical())
		return err
	})
}

func checkWaitCut(t *trial) {
	t.take(invoices)
	p := t.waiting(15)
	t.pause(time.Second)
	t.proxy.Cut()
	t.must(t.remove(invoices))
	t.pause(time.Second)
	t.must(t.proxy.Heal())
	t.released(p, 2*requestTimeout)
}

func checkContention(t *trial) {
	t.take(invoices)
	var waiters []*pending
	for range 4 {
		waiters = append(waiters, t.waiting(60))
	}
	t.pause(time.Second)
	t.must(t.remove(invoices))
	for i := 0; len(waiters) > 0; waiters = slices.Delete(waiters, i, i+1) {
		answered := func() bool {
			i = slices.IndexFunc(waiters, (*pending).answered)
			return i >= 0
		}
		t.require(t.within(background, answered), "the lock is free, but none of the waiters took it")
		t.succeed(waiters[i].d, unlockCommand(t.released(waiters[i], 0)))
	}
}

func (c command) brief(patience float64) command {
	c.AlertAfter, c.Patience = patience/2, patience
	return c
}

func (t *trial) lost(d *driver, a answer, wait float64) answer {
	return t.succeed(d, command{Op: "lost", UUID: a.UUID, Wait: wait})
}

func checkLostDeadline(t *trial) {
	const patience = 4.0
	d, mine := t.holder(lockCommand(invoices).brief(patience))
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
	d, mine := t.holder(lockCommand(invoices).brief(patience))
	t.proxy.Blackhole()
	t.unanswered(d, mine, t.do(d, aliveCommand(mine).brief(patience)))
}

func checkLostShorter(t *trial) {
	d, mine := t.holder(lockCommand(invoices))
	a := t.hooked(d, aliveCommand(mine).brief(4), quietly(t.proxy.Blackhole), nothing)
	t.unanswered(d, mine, a)
}

// unanswered requires that a client whose renewal got no answer knows that the lock is lost before
// the deadline in etcd.
func (t *trial) unanswered(d *driver, mine, a answer) {
	t.require(!a.OK, "alive answered ok while etcd was silent")
	if a.Error != "lost" {
		a = t.lost(d, mine, 1)
	}
	late := a.at.Sub(t.instant(t.fields(invoices), "auto_unlock_at")).Round(time.Millisecond)
	t.require(a.Lost || a.Error == "lost", "it has not noticed the loss %v after the deadline", late)
	t.require(late <= 0, "it noticed the loss %v after the deadline", late)
}

func checkLostUnlock(t *trial) {
	const patience = 3.0
	d, mine := t.holder(lockCommand(invoices).brief(patience))
	t.proxy.Blackhole()
	t.pause(time.Until(t.instant(t.fields(invoices), "auto_unlock_at")))
	a := t.refused(d, unlockCommand(mine), "lost")
	t.require(a.took() <= handOff, "it reported the loss after %v", a.took())
	t.pause(time.Second) // its first attempt to release the lock is lost
	t.proxy.Break()
	t.cleared(invoices)
}

func checkLostRestored(t *trial) {
	d := t.driver()
	t.restart(t.cluster.Save)
	t.must(t.otherWrites())
	replaced := func(name string, replace func() error, newer bool) {
		mine := t.succeed(d, lockCommand(name))
		copied := map[string]string{}
		for field, kv := range t.fields(name) {
			copied[field] = string(kv.Value)
		}
		t.restart(replace)
		for newer && t.revision() < mine.Token {
			t.must(t.otherWrites())
		}
		_, err := t.write(name, copied)
		t.must(err)
		t.refused(d, aliveCommand(mine), "lost")
	}
	replaced(invoices, t.cluster.Revert, false) // the same cluster, with a revision below the token
	replaced(reports, t.cluster.Wipe, true)     // another cluster, with a revision above it
}

func checkLostSuspended(t *trial) {
	const patience = 6.0 // more than it takes to suspend it on a busy machine
	d, mine := t.holder(lockCommand(invoices).brief(patience))
	t.must(d.suspend())
	t.pause(seconds(patience) + time.Second)
	query := d.begin(command{Op: "lost", UUID: mine.UUID})
	t.must(d.signal(syscall.SIGCONT))
	a := t.success(query)
	t.require(a.Lost, "it was suspended until after its deadline, and answers that the lock is not lost")
	t.refused(d, aliveCommand(mine).brief(patience), "lost")
}
