package main

import (
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func waitChecks() []check {
	return []check{
		{name: "wait", about: "a waiter sends nothing while it waits, and takes the lock at once when it is free", run: checkWait},
		{name: "wait-timeout", about: "a wait ends in time, with the holder", run: checkWaitTimeout},
		{name: "wait-revision", about: "a release before the watch has begun is not missed", run: checkWaitRevision},
		{name: "wait-compacted", about: "a waiter survives the compaction of the revision that it waits from", run: checkWaitCompacted},
		{name: "wait-cut", about: "a waiter survives the loss of its connection", run: checkWaitCut},
		{name: "contention", about: "each of several waiters gets the lock", run: checkContention},
	}
}

const handOff = 1500 * time.Millisecond // within which a free lock must be taken

// waiting starts a client that waits for the lock, which another holds, and returns when it
// has tried once.
func (t *trial) waiting(wait float64) *pending {
	d := t.driver()
	began := time.Now()
	c := lockCommand(invoices)
	c.Wait = wait
	p := t.begin(d, c)
	t.require(t.await(startup, func(q request) bool { return q.write && !q.at.Before(began) }), "lock sent no request that writes")
	return p
}

// released requires that a waiter gets the lock within a limit from now on.
func (t *trial) released(p *pending, limit time.Duration) {
	from := time.Now()
	a := t.success(p)
	t.require(a.at.Sub(from) <= limit, "the waiter took the lock %v after it was free", a.at.Sub(from).Round(time.Millisecond))
	t.fresh(p.c.Name, grant{UUID: a.UUID})
}

func checkWait(t *trial) {
	const idle, tolerated = 5 * time.Second, 1
	t.take(invoices)
	p := t.waiting(60)
	t.pause(time.Second) // the watch begins
	from := time.Now()
	t.pause(idle)
	sent := len(t.requests(from))
	t.require(sent <= tolerated, "it sent %d requests within %v while it waited", sent, idle)
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

// checkWaitAfter releases the lock immediately after the first attempt of a waiter.
func checkWaitAfter(t *trial, then func() error) {
	t.take(invoices)
	d := t.driver()
	c := lockCommand(invoices)
	c.Wait = 10
	t.arm(nil, func() error { return errors.Join(t.remove(invoices), then()) })
	p := t.begin(d, c)
	t.require(t.await(startup, func(q request) bool { return q.write }), "lock sent no request that writes")
	t.released(p, handOff+slack)
	_, err := t.fired()
	t.must(err)
}

func checkWaitRevision(t *trial) { checkWaitAfter(t, t.otherWrites) }

func checkWaitCompacted(t *trial) {
	checkWaitAfter(t, func() error {
		ctx, cancel := t.request()
		defer cancel()
		r, err := t.etcd.Put(ctx, "/conformance/other", "x")
		if err != nil {
			return err
		}
		_, err = t.etcd.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical())
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
	tokens := map[int64]bool{}
	for range waiters {
		d, a := t.first(waiters)
		t.require(a.OK, "a waiter failed: %s", a)
		t.require(!tokens[a.Token], "two holders have the token %d", a.Token)
		tokens[a.Token] = true
		t.succeed(d, unlockCommand(a))
	}
}

// first returns the next answer of several commands.
func (t *trial) first(of []*pending) (*driver, answer) {
	limit := time.After(requestTimeout + slack)
	for {
		for _, p := range of {
			select {
			case a := <-p.answer:
				return p.d, a
			default:
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.fail("the lock is free, but none of the waiters took it")
		}
	}
}
