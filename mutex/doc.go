// Package mutex takes locks in etcd that are removed when their holder dies: not by a lease,
// but by the unlocker daemon, which first alerts and then removes what is no longer renewed.
//
//	client, err := mutex.New(etcd)
//	...
//	err = client.WithLock(ctx, "billing/invoices", func(ctx context.Context) error {
//		return writeInvoices(ctx)
//	}, mutex.Expect(10*time.Minute), mutex.Purpose("invoices of November"))
//
// With Slots a name has up to that many holders at once, each with a lock of its own.
//
// A lock has two times: after Expect it is overdue, and an alert fires; after Patience
// (what others call the TTL) without a sign of life it is removed. The sign is Lock.Alive,
// called by the work itself, or KeepAlive, which renews in the background.
//
// # Guarantees
//
// Two processes do not hold a lock at the same time, as long as each stops when the context
// of its lock ends (see Lock.Context), and no operator removes a lock whose holder works.
// The holder measures its deadline with its own clocks, from before the request was sent that
// set it, and the lock counts as lost a tenth of the patience before it. All transactions compare
// the uuid of the acquisition, and are repeated if their answer is lost.
//
// No goroutine outlives its lock or its wait. There are two for each lock that is held for longer than
// 100 ms, and for all locks of a client with KeepAlive one, and one for each of their
// transactions that has no answer yet, and one while any of them waits; etcd's client has more for leases, which stay.
// One more per client ends with the patience or with etcd's client: etcd may execute late what it has not answered, and
// so take a lock without a holder, after an error of Lock or after Unlock. Such a lock is released in the background,
// and no lock that is held. So is one that was lost because etcd failed: as soon as Unlock is called or its own
// deadline has passed, and etcd answers.
//
// # No guarantees
//
// A process suspended between two checks of its context finishes its current step. Only a fencing
// token (Lock.Token, Lock.Cmp) that the resource checks prevents that.
//
// The order of waiters is a service, not a promise: Lock serves them in the order in which they came, but TryLock and
// clients of other kinds take what is free, a waiter that does not take the lock within a second is passed over, and one
// whose process was suspended or cut off for ten seconds is last again. Without rights to the tickets there is no order
// (see WaitersPrefix). Locks are not reentrant; see Identity.
//
// A lock that is taken late stays until its deadline if etcd's client was closed, if the process
// has ended, or if the client has had 1000 newer ones to release: then it gives up the oldest. A lock
// that was lost in another way than by a failure of etcd stays, too, until Unlock is called.
//
// Package mutextest is for tests of code that uses this one: an etcd in memory, and the ways to lose a lock. See Observe
// for logs and metrics.
//
// The protocol is described in docs/protocol.md of the repository. The module requires etcd's client
// 3.5 or newer.
package mutex
