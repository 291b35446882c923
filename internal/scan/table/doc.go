// Package table keeps what is known of every lock.
//
// One goroutine (Table.Run) owns it; all others reach it through a channel and
// get copies of aggregates, of pages and of single locks, never of everything.
// The table guarantees that nothing scans all locks on an event, on a tick or
// on a scrape: states change by an index-tracking heap ordered by each lock's
// next transition. It scans them at a listing, when the wall clock steps, and
// when a person asks for a page.
//
// A lock that is due is handed out by Take, once, until it changes or is put
// back by Postpone. The table does not decide whether a lock may be removed,
// and does not remove it from itself because somebody says so: only what was
// seen in etcd changes it.
package table
