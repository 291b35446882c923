// Package pause is how a person stops the automatic removal of all locks, or of some, for a while:
// the record of a pause in etcd, and the pauses in force as a daemon follows them.
//
// Guaranteed: while a record is in etcd and in view, it is in force, whatever the clocks say. What
// cannot be read as a pause pauses all. Pauses.Unseen is not empty unless all records are known,
// as far as the watch shows.
//
// Not guaranteed: that a transaction which was sent before the pause was seen is not executed
// after it.
package pause
