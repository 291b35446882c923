// Package reaper removes locks that are due.
//
// A worker takes due locks from the table, reads each whole from etcd, makes the
// verdict on what it read, logs both, and only then sends one guarded transaction
// (package lockstore). It guarantees, by the names of docs/safety.md:
//
//   - S3: while a hold is in force, or a probe is overdue, nothing is sent.
//   - S7: nothing is sent that was not logged; an outcome that is not known is
//     reported as ambiguous and tried again, which the compares make safe.
//   - S8: a lock without a readable deadline is never removed.
//
// It does not conclude from its own answer that a lock is gone: the watch shows
// that to the table.
package reaper
