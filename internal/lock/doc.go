// Package lock is the lock model of protocol 1: which keys make a lock, what
// their values mean, and which state a lock is in.
//
// Everything here is a pure function of values and of the time handed in. The
// package guarantees that no key and no value, however hostile, makes it panic,
// and that of no value more than a bounded amount is kept (names are kept
// whole). It does not guarantee that what a lock says is true: names, hosts and
// times are their writer's claims.
//
// The protocol is described in docs/protocol.md.
package lock
