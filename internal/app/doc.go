// Package app assembles the daemon: it makes all parts from the configuration, starts them
// in order, and stops them in reverse order.
//
// New binds the listeners and fails on every error that a retry cannot fix, such as an
// invalid file or a port in use. It does not need etcd: a daemon that starts before etcd is
// live but not ready, and becomes ready by itself. Stop returns when all goroutines have
// ended, including transactions in flight.
//
// Not guaranteed: that Stop waits longer than its context. What has not ended by then is
// reported as an error.
package app
