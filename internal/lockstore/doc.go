// Package lockstore reads and deletes single locks in etcd.
//
// It guarantees, by the names of docs/safety.md:
//
//   - S1: Delete deletes a lock only if, in that transaction, it is still the one
//     that was read: same uuid, same auto_unlock_at, no key newer than the newest
//     that was read. Unlock, for people, compares the uuid and the newest key.
//   - S4: all keys of the lock are deleted in one transaction, and none of another
//     lock: not of nested names, none that carries a lease.
//   - S5: no transaction has a put, in any branch.
//
// It does not decide what may be removed, and it does not retry on its own, except
// where a holder renews during Unlock. An error for which Classify returns
// ReasonAmbiguous leaves open whether the deletion happened.
package lockstore
