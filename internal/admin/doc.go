// Package admin implements the commands list, show, history, unlock, pause, resume and config check
// --connect. It connects to etcd with the configuration of the daemon and needs no daemon. It has no
// rules of its own about when a lock is removed: Explain asks a daemon.
//
// Guaranteed: it writes nothing to etcd except the deletion by Unlock, the record of that and
// the keys of pauses, neither of which is under the prefix of the locks. If etcd does not
// answer within etcd.request_timeout, a call returns an error that names the endpoints. A Watch
// says so and continues.
// Results are valid UTF-8 and bounded, apart from the number of locks; package output prints
// them safely.
//
// Not guaranteed: that a daemon is running, or that it has the same configuration.
package admin
