// Package admin is what the commands list, show and unlock do. It speaks to etcd
// itself, with the daemon's configuration, and needs no daemon.
//
// Guaranteed: nothing is written to etcd but the one deletion that Unlock is asked
// for, and every call ends, with an error that names the endpoints, where etcd does
// not answer within etcd.request_timeout. What is returned is valid UTF-8 and bounded
// but for the number of locks; package output makes it fit for a terminal.
//
// Not guaranteed: that a daemon runs, or that it has the configuration at hand. What
// is said of the future follows from that configuration alone: holds, and clocks that
// a daemon has compared, can only delay it.
package admin
