// Package lockstore reads and deletes single locks in etcd.
//
// Guaranteed, with the names of docs/safety.md:
//
//   - S1: Delete deletes a lock only if it has not changed since it was read: in the
//     transaction that deletes, it has the same uuid, the same auto_unlock_at, and no newer
//     key. Unlock, for manual unlocks, compares the uuid and the newest key.
//   - S4: one transaction deletes all keys of the lock, and no other keys: neither those of
//     nested names, nor keys of other programs, which have a lease.
//   - S5: no transaction has a put, in any branch, except what the caller of Unlock adds.
//
// Not guaranteed: that a lock may be removed, which the caller decides, or that a deletion
// whose error Classify calls ReasonAmbiguous did not happen. The package does not retry,
// except if a holder renews during Unlock.
package lockstore
