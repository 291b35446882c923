// Package scan keeps the table of locks in line with etcd: it lists all keys
// below the prefix at one revision, watches them from there, and begins anew
// whenever the watch cannot be trusted any more.
//
// It guarantees that the table never goes back in time within one history of
// etcd, that a watch which shows no sign of life for the freshness ends, and
// that it goes on for ever until its context is done. It does not guarantee
// that the table is current: Status tells how old the newest sign of life is.
// It writes nothing to etcd.
package scan
