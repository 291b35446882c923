// Package scan keeps the table of locks up to date with etcd: it lists all keys
// below the prefix at one revision, watches them from there, and relists whenever
// the watch cannot be trusted any more.
//
// It guarantees that the table never goes back in time within one history of
// etcd, that a watch ends which shows neither an event nor a progress notice for
// the freshness, and that it continues until its context is done. It does not
// guarantee that the table is current: Status.Progress is the time of the newest
// event or progress notice.
// It writes nothing to etcd.
package scan
