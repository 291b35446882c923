// Package reaper removes locks that are due.
//
// A worker takes due locks from the table, reads each whole lock from etcd, makes the verdict
// on what it read, and logs both. Then it sends one transaction (package lockstore).
//
// Guaranteed, with the names of docs/safety.md:
//
//   - S3: while a hold is in force, or a probe is overdue, no removal is sent.
//   - S7: every removal is logged before it is sent. An unknown outcome is reported as
//     ambiguous, and the removal is tried again, which is safe because of the compares.
//   - S8: a lock without a readable deadline is never removed.
//
// Not guaranteed: that the table reflects a removal as soon as it is answered. Only the watch
// removes locks from the table.
package reaper
