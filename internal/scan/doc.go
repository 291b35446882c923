// Package scan keeps the table of locks up to date with etcd. It lists all keys under the
// prefix at one revision, watches them from there, and lists them again whenever the watch
// fails. It writes nothing to etcd.
//
// Guaranteed: the table never goes back to an older revision within one history of etcd. A
// watch that shows neither an event nor a progress notice for the freshness is ended. Run
// continues until its context is done.
//
// Not guaranteed: that the table is current. Status.Progress is the time of the newest event
// or progress notice.
package scan
