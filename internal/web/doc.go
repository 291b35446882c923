// Package web serves the read-only JSON API: the locks, one lock with all its fields, the
// recent forced unlocks, and the status of the daemon.
//
// Guaranteed: an answer is never cached and never taken for anything but JSON. An error
// is JSON with the right status. Few requests are served at a time, because a page of
// locks scans the table, which removals need too. Not guaranteed: authentication, which
// is up to the configuration of the listener. The package changes nothing.
package web
