// Package web serves the read-only JSON API: which locks there are, one lock
// with all that etcd holds of it, what was removed by force, and how the daemon
// itself is.
//
// It guarantees that nothing it answers is cached or taken for anything but
// JSON, that an error is JSON too, with the right status, and that few requests
// are served at a time: to page through locks scans the table, which removals
// need as well. It changes nothing, and does not authenticate: that is up to the
// listener's configuration.
package web
