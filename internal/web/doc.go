// Package web serves the API and the pages of the dashboard: the locks, one lock with all its
// fields and its history, the recent forced unlocks, native locks, the status of the daemon, a
// stream of changes, and the manual unlock, if that is allowed.
//
// Guaranteed: only assets, whose paths have their hashes, are ever cached, and no answer is taken for
// anything but its type. An error has the right status, in JSON or as a page. Few requests are served at a time, because a page of
// locks scans the table, which removals need too. Not guaranteed: authentication, which
// is up to the configuration of the listener; an unlock needs a user. Only an unlock
// changes anything.
package web
