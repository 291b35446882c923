package main

import "time"

func checkLockCut(t *trial) {
	d := t.driver()
	a := t.cut(d, lockCommand(invoices), t.otherWrites)
	t.require(a.OK, "its transaction has taken the lock and the answer was lost, but lock answered %s; in etcd: %s", a, t.fields(invoices))
	t.fresh(invoices, a.grant)
	t.succeed(d, aliveCommand(a))
	t.succeed(d, unlockCommand(a))
	t.absent(invoices)
}

func checkAliveCut(t *trial) {
	d, mine := t.holder(lockCommand(invoices))
	a := t.cut(d, aliveCommand(mine), t.otherWrites)
	t.require(a.OK, "the lock is still held, but alive answered %s", a)
	t.require(t.fields(invoices).token() == mine.Token, "the lock is not the same: %s", t.fields(invoices))
}

func checkAliveLate(t *trial) {
	d := t.driver()
	c := aliveCommand(t.succeed(d, lockCommand(invoices)))
	execute := t.withhold(t.proxy.Break)
	t.succeed(d, c)
	c.Patience *= 2
	t.succeed(d, c)
	before := t.fields(invoices)
	execute()
	after := t.fields(invoices)
	t.require(after.text("auto_unlock_at") == before.text("auto_unlock_at"),
		"an attempt that was executed after a later renewal moved auto_unlock_at from %s to %s", before, after)
	t.succeed(d, c)
}

func checkLockLate(t *trial) {
	d := t.driver()
	execute := t.withhold(t.proxy.Blackhole)
	t.refused(d, lockCommand(invoices), "unavailable")
	t.proxy.Break() // what it has sent meanwhile is lost
	execute()
	t.cleared(invoices)
}

func checkUnlockCut(t *trial) {
	d, mine := t.holder(lockCommand(invoices))
	var other fields
	a := t.cut(d, unlockCommand(mine), func() error { return t.seize(reports, &other) })
	t.require(a.OK, "its transaction has removed the lock and the answer was lost, but unlock answered %s", a)
	t.absent(invoices)
	t.untouched(reports, other)
}

func checkUnlockLate(t *trial) {
	d := t.driver()
	execute := t.withhold(t.proxy.Break)
	t.succeed(d, unlockCommand(t.succeed(d, lockCommand(invoices))))
	other := t.take(invoices)
	from := time.Now()
	// It tries to release the lock.
	t.within(requestTimeout, func() bool { return len(t.requests(from)) > 0 })
	for range 5 { // on a busy machine a second alone does not show that the client has run
		t.pause(200 * time.Millisecond)
		t.must(d.greet())
	}
	t.untouched(invoices, other)
	t.must(t.remove(invoices))
	execute()
	t.cleared(invoices)
}

// checkUnavailable sends each command to a client of its own while etcd cannot be reached.
func checkUnavailable(t *trial, disturb func()) {
	locker, keeper, leaver := t.driver(), t.driver(), t.driver()
	kept, left := t.succeed(keeper, lockCommand(invoices)), t.succeed(leaver, lockCommand(reports))
	disturb()
	for _, p := range []*pending{
		locker.begin(lockCommand("deploy/api")), keeper.begin(aliveCommand(kept)), leaver.begin(unlockCommand(left)),
	} {
		a := t.answer(p)
		t.require(!a.OK && a.Error == "unavailable", "%s answered %s while etcd could not be reached", p.c.Op, a)
	}
}

func checkAbandoned(t *trial) {
	keeper, locker := t.driver(), t.driver()
	// The request timeout bounds a renewal as a whole; a lock that waits may have many attempts.
	alive, lock := aliveCommand(t.succeed(keeper, lockCommand(invoices))), lockCommand(reports)
	lock.Wait = 60
	for _, abandoned := range []func(){t.hang(keeper, alive), t.hang(locker, lock)} {
		abandoned()
	}
}

func checkRestart(t *trial) {
	holder, locker := t.driver(), t.driver()
	mine := t.succeed(holder, lockCommand(invoices))
	waiter := t.waiting(60)
	t.pause(time.Second)
	var alive, lock *pending
	t.restart(func() error {
		alive, lock = holder.begin(aliveCommand(mine)), locker.begin(lockCommand(reports))
		t.pause(time.Second)
		return nil
	})
	t.success(alive)
	t.fresh(reports, t.success(lock).grant)
	t.succeed(holder, unlockCommand(mine))
	t.released(waiter, requestTimeout)
}

func checkFailover(t *trial) {
	d, mine := t.holder(lockCommand(invoices))
	for _, p := range t.proxies {
		p.Cut()
		t.succeed(d, aliveCommand(mine))
		a := t.succeed(d, lockCommand(reports))
		t.succeed(d, unlockCommand(a))
		t.must(p.Heal())
	}
}
