// Package table keeps the state of every lock in memory.
//
// One goroutine (Table.Run) owns the table. Callers send it functions through a channel, and
// get copies of aggregates, pages and single locks, never of all locks. The table guarantees
// that an event, a timer or a scrape does not scan all locks: the next transition of each
// lock is in a heap that tracks its indexes. All locks are scanned at a listing, when the
// wall clock steps, and for a page.
//
// Take returns a lock that is due once, and again only after the lock was modified or put
// back by Postpone. Not guaranteed: that a lock returned by Take may be removed, which is
// decided elsewhere. The result of a request to etcd does not remove a lock from the table;
// only an event or a listing does.
package table
