package main

func heldChecks() []check {
	return []check{
		{name: "alive", about: "one transaction moves both deadlines and writes alive_at", run: checkAlive},
		{name: "alive-compared", about: "a renewal changes nothing if the lock is lost", run: checkAliveCompared},
		{name: "unlock", about: "one transaction deletes all keys of the lock and none of nested names", run: checkUnlock},
		{name: "unlock-compared", about: "the lock of another is not removed", run: checkUnlockCompared},
	}
}

func checkAlive(t *trial) {
	d := t.driver()
	a := t.succeed(d, lockCommand(invoices))
	c := aliveCommand(a)
	c.AlertAfter, c.Patience = 40, 50 // so that the deadlines differ
	answer := t.succeed(d, c)
	f := t.fields(invoices)
	for _, field := range []string{"alive_at", "alert_at", "auto_unlock_at"} {
		t.require(f[field] != nil, "alive has not written %s: %s", field, f)
		t.require(f[field].ModRevision > f.token(), "alive has not written %s: %s", field, f)
		t.require(f[field].ModRevision == f["alive_at"].ModRevision, "%s and alive_at were not written in one transaction: %s", field, f)
		t.require(f[field].Lease == 0, "%s has a lease", field)
	}
	aliveAt := t.instant(f, "alive_at")
	t.now(f, "alive_at", answer)
	t.ahead(f, "alert_at", aliveAt, seconds(c.AlertAfter))
	t.ahead(f, "auto_unlock_at", aliveAt, seconds(c.Patience))
}

func checkAliveCompared(t *trial) {
	d := t.driver()
	taken, removed := t.succeed(d, lockCommand(invoices)), t.succeed(d, lockCommand(reports))
	var other fields
	a := t.hooked(d, aliveCommand(taken), func() (err error) {
		other, err = t.seize(invoices)
		return err
	}, nil)
	t.untouched(invoices, other)
	t.require(!a.OK && a.Error == "lost", "another had taken the lock, but alive answered %s", a)
	a = t.hooked(d, aliveCommand(removed), func() error { return t.remove(reports) }, nil)
	t.absent(reports)
	t.require(!a.OK && a.Error == "lost", "the lock had been removed, but alive answered %s", a)
	for _, a := range []answer{taken, removed} {
		t.require(t.succeed(d, command{Op: "lost", UUID: a.UUID}).Lost, "it knows that the lock is lost, but answers that it is not")
	}
}

func checkUnlock(t *trial) {
	d := t.driver()
	a := t.succeed(d, lockCommand(invoices))
	t.succeed(d, aliveCommand(a))
	names := []string{invoices + "/november", invoices + "/uuid", invoices + "2", "billing"}
	others := make([]fields, len(names))
	for i, name := range names {
		others[i] = t.take(name)
	}
	keys, before := len(t.fields(invoices)), t.revision()
	t.succeed(d, unlockCommand(a))
	t.absent(invoices)
	deleted := t.deletions(invoices, before)
	t.require(len(deleted) == 1, "%d keys were deleted by %d transactions", keys, len(deleted))
	for i, name := range names {
		t.untouched(name, others[i])
	}
}

func checkUnlockCompared(t *trial) {
	d := t.driver()
	mine := t.succeed(d, lockCommand(invoices))
	var other fields
	a := t.hooked(d, unlockCommand(mine), func() (err error) {
		other, err = t.seize(invoices)
		return err
	}, nil)
	t.untouched(invoices, other)
	t.require(!a.OK && a.Error == "lost", "another had taken the lock, but unlock answered %s", a)
}
