package main

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const waitersPrefix = "/conformance/waiters/"

// waiter is a client that waits with a ticket.
type waiter struct {
	*pending
	ticket *mvccpb.KeyValue
}

// queued starts a client that waits, and returns when it has put a ticket.
func (t *trial) queued(c command) waiter {
	d, last := t.driver(), t.revision()
	w := waiter{pending: d.begin(c)}
	t.queues(&w, last)
	return w
}

// queues waits for the ticket that a waiter puts after a revision. A client that never puts one is not judged.
func (t *trial) queues(w *waiter, last int64) {
	put := func() bool {
		t.require(!w.answered(), "it waits no more, although the lock is held or others wait")
		w.ticket = append(t.queue(clientv3.WithMinCreateRev(last+1)), nil)[0]
		return w.ticket != nil
	}
	if !t.within(slack, put) {
		t.require(!t.tickets, "it put no ticket for %v, although it did before", slack)
		t.skip("it waits without a ticket")
	}
	t.tickets = true
	name, _, valid := protocol.SplitTicket(waitersPrefix, w.ticket.Key)
	said, err := protocol.ParseTicket(w.ticket.Value)
	t.require(valid && string(name) == w.c.Name && w.ticket.Lease != 0 && err == nil && said.Slots == w.c.Slots,
		"this is not a ticket of a waiter for %q: %s", w.c.Name, w.ticket)
}

// queue returns the tickets of all names, in their order.
func (t *trial) queue(options ...clientv3.OpOption) []*mvccpb.KeyValue {
	order := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
	r, err := t.etcd.Get(t.ctx, waitersPrefix, append(options, clientv3.WithPrefix(), order)...)
	t.must(err)
	return r.Kvs
}

// inTurn requires that a waiter takes the lock by a transaction that deletes its ticket and those of the waiters that
// it passes over, and that there were no others before its own.
func (t *trial) inTurn(w waiter, over ...*mvccpb.KeyValue) answer {
	a := t.released(w.pending, handOff+time.Duration(len(over))*slack)
	said, _ := protocol.ParseTicket(w.ticket.Value)
	t.require(a.UUID == said.UUID, "its lock has the uuid %q, its ticket %q", a.UUID, said.UUID)
	keys := func(tickets ...*mvccpb.KeyValue) (keys []string) {
		for _, kv := range tickets {
			keys = append(keys, strings.TrimPrefix(string(kv.Key), waitersPrefix))
		}
		return keys
	}
	before, after := keys(t.queue(clientv3.WithRev(a.Token-1))...), keys(t.queue(clientv3.WithRev(a.Token))...)
	t.require(slices.Equal(before, slices.Concat(keys(over...), keys(w.ticket), after)),
		"%q took the lock by a transaction that left, of the tickets\n%q,\n%q", keys(w.ticket), before, after)
	return a
}

// checkQueue has waiters take the lock one after another. One of them gives up before, and a client without a ticket,
// if there is one, takes the lock immediately before the first of them.
func checkQueue(t *trial, ticketless bool) {
	t.take(invoices)
	var waiters []waiter
	for _, wait := range []float64{60, 2, 60, 60} {
		waiters = append(waiters, t.queued(lockWait(wait)))
	}
	t.answer(waiters[1].pending)
	t.require(t.within(background, func() bool { return len(t.queue()) < len(waiters) }), "it gave up, but its ticket is still there after %v", background)
	if ticketless {
		var other fields
		met := t.surround(writes, func() error { return t.seize(invoices, &other) }, nothing)
		t.must(t.remove(invoices))
		t.pause(handOff)
		t.must(met())
		t.untouched(invoices, other)
	}
	for _, w := range slices.Delete(waiters, 1, 2) {
		t.must(t.remove(invoices))
		t.inTurn(w)
	}
}

// checkPassedOver suspends the first waiter. The second comes before or after the release.
func checkPassedOver(t *trial, newcomer bool) {
	t.take(invoices)
	first, d := t.queued(lockWait(60)), t.driver()
	var second waiter
	if !newcomer {
		second = t.queued(lockWait(60))
	}
	t.must(first.d.suspend())
	free := time.Now()
	t.must(t.remove(invoices))
	if newcomer {
		t.succeed(d, unlockCommand(t.succeed(d, lockCommand(invoices)))) // as it does not wait
		second = t.queued(lockWait(60))
	}
	a := t.inTurn(second, first.ticket)
	after := min(a.took(), a.at.Sub(free))
	t.require(after >= time.Second*9/10, "it passed over another waiter after %v", after)
	t.must(first.d.signal(syscall.SIGCONT))
	t.queues(&first, a.Token)
	t.must(t.remove(invoices))
	t.inTurn(first)
}

func checkSlots(t *trial) {
	c := lockWait(0)
	c.Slots = 2
	for range c.Slots {
		if t.released(t.driver().begin(c), requestTimeout); len(t.fields(invoices)) > 0 {
			t.skip("it takes a lock, not a slot")
		}
	}
	t.refused(t.driver(), c, "held")
	c.Wait = 60
	first, second, third := t.queued(c), t.queued(c), t.queued(c)
	t.must(t.remove(invoices+"/0", invoices+"/1"))
	t.inTurn(first)
	t.inTurn(second)
	t.must(t.remove(invoices + "/1"))
	t.inTurn(third)
}
