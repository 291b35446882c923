// Package admin implements the commands list, show and unlock. It connects to etcd with
// the configuration of the daemon and needs no daemon. It has no rules of its own about
// when a lock is removed: Explain asks a daemon.
//
// Guaranteed: it writes nothing to etcd except the deletion by Unlock. If etcd does not
// answer within etcd.request_timeout, a call returns an error that names the endpoints.
// Results are valid UTF-8 and bounded, apart from the number of locks; package output
// prints them safely.
//
// Not guaranteed: that a daemon is running, or that it has the same configuration.
package admin
