// Package history tells who held a lock and how each period ended, from what etcd's old revisions
// show, what holders wrote into their locks, the records of manual unlocks and what a daemon knows.
//
// Guaranteed: what it says follows from that. Texts are valid UTF-8 and bounded, as are the
// requests to etcd, which are made one after the other.
//
// Not guaranteed: that a time is right. etcd keeps none, so that all are by the clocks of those
// who wrote them.
package history
