// Package elect names one of several replicas the leader, through etcd. It is a
// head start and not a licence: the leader acts first, the others act a little
// later, and what keeps them from harm is the transaction they act with.
//
// It guarantees:
//
//   - Leader is true only while etcd has confirmed our lease within the TTL less a
//     margin, counted by our monotonic clock from the moment the renewal was sent.
//     A replica that hung, or was cut off, is no leader when it wakes up, whatever
//     its goroutines have noticed by then; and etcd gives the lease up later than
//     we do, so two leaders at a time need clocks that run 10 % apart.
//   - A term is believed in only after a read through a quorum has shown our key,
//     by its create revision, as the oldest one; the read is repeated as long as
//     the term lasts. Each term has its own lease and its own context.
//   - Run ends when its context is done, within the two seconds it takes at most
//     to give up the key, and for no other reason. Giving it up lets the next
//     replica follow at once.
//   - A role with readwrite on the election's keys alone, [key/, key0), suffices.
//
// It does not guarantee that there is a leader: with etcd away, without a quorum,
// or out of space (no lease can be granted), there is none. Nor that what a leader
// began in its term ends in it: whoever stops the leader's work has to do so, and
// wait for it, before the context of Run ends. Nor anything about a machine that
// was suspended: its monotonic clock may have stood still.
//
// Keys are those of etcd's own concurrency.Election (and of etcdctl elect), which
// may take part. Its code is not used: Session hides when a renewal was sent and
// so cannot tell how long a lease is good for; Campaign goes on after its session
// has died (etcd#19597), hangs without a deadline when it is cancelled (etcd#21128)
// and waits on a watch that may fail with an old token (etcd#12385). Here the watch
// is a hint, and the repeated read decides.
package elect
