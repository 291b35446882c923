package main

import (
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The locks of most checks.
const invoices, reports = "billing/invoices", "reports/monthly"

const (
	alertAfter = 20.0 // seconds
	patience   = 30.0
)

func lockCommand(name string) command {
	return command{Op: "lock", Name: name, AlertAfter: alertAfter, Patience: patience, Purpose: "conformance"}
}

func aliveCommand(a answer) command {
	return command{Op: "alive", UUID: a.UUID, AlertAfter: alertAfter, Patience: patience}
}

func unlockCommand(a answer) command { return command{Op: "unlock", UUID: a.UUID} }

func checkLock(t *trial) {
	a := t.succeed(t.driver(), lockCommand(invoices))
	f := t.fresh(invoices, a.grant)
	t.require(f.text("purpose") == "conformance", "the purpose is not in etcd: %s", f)
}

func checkDeadlines(t *trial) {
	a := t.succeed(t.driver(), lockCommand(invoices))
	f := t.fields(invoices)
	t.now(f, "locked_at", a)
	lockedAt := t.instant(f, "locked_at")
	t.ahead(f, "alert_at", lockedAt, seconds(alertAfter))
	t.ahead(f, "auto_unlock_at", lockedAt, seconds(patience))
}

func checkLockHeld(t *trial) {
	d := t.driver()
	other := t.take(invoices)
	before := t.revision()
	a := t.refused(d, lockCommand(invoices), "held")
	t.require(a.took() < seconds(patience)/2, "it was not to wait, but answered after %v", a.took())
	for _, field := range []string{"uuid", "hostname", "purpose", "auto_unlock_at"} {
		t.require(a.Holder[field] == other.text(field), "the holder has %s=%q, not %q", field, a.Holder[field], other.text(field))
	}
	t.untouched(invoices, other)
	t.require(t.revision() == before, "it has written although the lock is held")
}

func checkLeftovers(t *trial) {
	d := t.driver()
	for _, field := range []string{"purpose", "uuid"} {
		_, err := t.etcd.Put(t.ctx, prefix+invoices+"/"+field, field)
		t.must(err)
	}
	a := t.refused(d, lockCommand(invoices), "held")
	t.require(a.Holder["purpose"] == "", "the holder has purpose=%q, which was last written before its uuid", a.Holder["purpose"])
}

func checkUUID(t *trial) {
	d, first := t.holder(lockCommand(invoices))
	t.succeed(d, aliveCommand(first))
	f := t.fields(invoices)
	t.require(f.text("uuid") == first.UUID && f["uuid"].Version == 1, "alive has written the uuid: %s", f)
	t.succeed(d, unlockCommand(first))
	second := t.succeed(d, lockCommand(invoices))
	other := t.succeed(d, lockCommand(reports))
	t.require(first.UUID != second.UUID && second.UUID != other.UUID, "two acquisitions have the same uuid %q", second.UUID)
}

func checkToken(t *trial) {
	d := t.driver()
	last := int64(0)
	for range 2 {
		t.must(t.otherWrites())
		a := t.succeed(d, lockCommand(invoices))
		t.fresh(invoices, a.grant)
		t.require(a.Token > last, "the token does not grow")
		last = a.Token
		t.succeed(d, aliveCommand(a))
		t.succeed(d, unlockCommand(a))
	}
}

func checkNames(t *trial) {
	d := t.driver()
	for _, name := range []string{"a", "a/b/c", "a/uuid", "Zürich/日本 𝄞", "with space", `q"uo'te\`, "%2F?&=+#", "~/-_.>>??", "tab\there\n"} {
		a := t.succeed(d, lockCommand(name))
		t.fresh(name, a.grant)
		t.succeed(d, unlockCommand(a))
		t.absent(name)
	}
	before := t.revision()
	for _, name := range []string{"", "/a", "a/", "a//b"} {
		a := t.do(d, lockCommand(name))
		t.require(!a.OK && a.Error == "invalid", "lock of the invalid name %q answered %s", name, a)
	}
	t.require(t.revision() == before, "it has written under invalid names")
}

func checkTryLockAll(t *trial) {
	const many = 150 // more than the operations of a transaction
	d := t.driver()
	var names []string
	for i := range many {
		names = append(names, invoices+"/"+string(rune('一'+i)))
	}
	held := map[string]fields{}
	for _, name := range []string{names[0], names[60], names[many-1]} {
		held[name] = t.take(name)
	}
	c := command{Op: "try_lock_all", Names: names, AlertAfter: alertAfter}
	c.Patience = patience + c.limit().Seconds() // they are held at the end, also by a driver that takes one after another
	a := t.succeed(d, c)
	t.require(len(a.Locks) == many-len(held) && len(a.Held) == len(held), "%d are locked and %d held, not %d and %d",
		len(a.Locks), len(a.Held), many-len(held), len(held))
	for _, g := range a.Locks {
		t.require(held[g.Name] == nil, "%q is held by another, but said to be locked", g.Name)
		t.fresh(g.Name, g)
	}
	for _, r := range a.Held {
		t.require(held[r.Name] != nil && r.Holder["uuid"] == held[r.Name].text("uuid"), "%q has the holder %v, not %s", r.Name, r.Holder, held[r.Name])
		t.untouched(r.Name, held[r.Name])
	}
	g := a.Locks[1]
	t.succeed(d, command{Op: "unlock", UUID: g.UUID})
	t.absent(g.Name)
}

func checkQuit(t *trial) {
	d := t.driver()
	t.succeed(d, command{Op: "quit"})
	t.must(d.exit(requestTimeout))
}

func checkAlive(t *trial) {
	d, a := t.holder(lockCommand(invoices))
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
	t.raced(d, aliveCommand(taken), invoices, "lost")
	a := t.hooked(d, aliveCommand(removed), func() error { return t.remove(reports) }, nothing)
	t.absent(reports)
	t.require(!a.OK && a.Error == "lost", "the lock had been removed, but alive answered %s", a)
	for _, a := range []answer{taken, removed} {
		t.require(t.lost(d, a, 0).Lost, "it knows that the lock is lost, but answers that it is not")
	}
}

// checkAnswer asks a client several times at once. One that supports no questions passes.
func checkAnswer(t *trial) {
	d, a := t.holder(lockCommand(invoices))
	t.pause(time.Second) // until it listens
	was := t.fields(invoices)
	for range 5 {
		_, err := t.etcd.Put(t.ctx, "/unlocker/ask"+prefix+invoices+"//"+a.UUID, "not JSON")
		t.must(err)
	}
	t.pause(slack)
	is := t.fields(invoices)
	answered := is["answered_at"]
	for field, kv := range is {
		if answer := field == "answered_at" || field == "stack" || field == "status"; !answer {
			t.require(was[field] != nil && was[field].ModRevision == kv.ModRevision, "an answer has written %s: %s", field, is)
		}
	}
	t.require(answered == nil || answered.Version == 1, "it answered more than once within %s: %s", slack, is)
	t.require(answered == nil || is["stack"] == nil || is["stack"].ModRevision == answered.ModRevision, "an answer is not one transaction: %s", is)
	t.succeed(d, unlockCommand(a))
	t.absent(invoices)
}

func checkUnlock(t *trial) {
	d, a := t.holder(lockCommand(invoices))
	t.succeed(d, aliveCommand(a))
	names := []string{invoices + "/november", invoices + "/uuid", invoices + "2", "billing"}
	others := make([]fields, len(names))
	for i, name := range names {
		others[i] = t.take(name)
	}
	all, revision := t.fields(invoices), t.revision()
	t.succeed(d, unlockCommand(a))
	t.absent(invoices)
	for left := all; len(left) > 0; revision++ {
		left = t.fields(invoices, clientv3.WithRev(revision))
		t.require(len(left)%len(all) == 0, "%d keys were not deleted by one transaction, which left %s", len(all), left)
	}
	for i, name := range names {
		t.untouched(name, others[i])
	}
}

func checkUnlockCompared(t *trial) {
	d := t.driver()
	t.raced(d, unlockCommand(t.succeed(d, lockCommand(invoices))), invoices, "lost")
}
