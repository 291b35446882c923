// Package protocol is the lock model of protocol 1: which keys belong to a lock, what
// their values mean, and which state a lock is in.
//
// Everything here is a pure function of values and of the time that is passed in.
// The package guarantees that no key and no value, however hostile, makes it
// panic, and that only a bounded part of each value is kept (names are kept
// whole). It does not guarantee that the contents of a lock are true: names,
// hosts and times are claims of the client that wrote them.
//
// The protocol is described in docs/protocol.md.
package protocol
