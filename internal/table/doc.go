// Package table keeps what is known of every lock.
//
// One goroutine (Table.Run) owns it; others reach it through a channel and get
// copies of aggregates, of pages and of single locks, never of everything.
// The table guarantees that nothing scans all locks on an event, on a tick or
// on a scrape: states change by an index-tracking heap ordered by each lock's
// next transition. It scans them at a listing, when the wall clock steps, when an
// outage has ended (Reschedule), and for pages, all those asked for at once in one
// scan that blocks the table for a quarter of a millisecond at a time.
//
// Take returns each lock that is due once, until the lock is modified or put back
// by Postpone. The table does not decide whether a lock may be removed, and no
// answer of a request removes a lock from it: only what was observed in etcd does.
package table
