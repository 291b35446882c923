// Package reaper removes locks that are due.
//
// A worker takes locks that are due, reads each whole from etcd, makes the
// verdict on what it read, logs both, and only then sends one transaction that
// deletes the lock if it still is what the verdict was made on. Guarantees, by
// the names of docs/safety.md:
//
//   - S1: the transaction compares the uuid, the deadline and the newest
//     mod_revision of the lock's keys; whatever changes meanwhile makes it fail.
//   - S4: all keys of the lock go in one transaction, and none of any other
//     lock: not of nested names, none that carries a lease.
//   - S5: no transaction holds a put, in any branch.
//   - S7: nothing is sent that was not logged; an outcome that is not known is
//     called so and tried again, which the compares make safe.
//   - S8: a lock without a readable deadline is left alone.
//
// What it does not do: believe its own success. That a lock is gone is known
// when the watch has shown it, and told by the source.
package reaper
