// Package app puts the daemon together: it makes every part from the
// configuration, starts them in order, and stops them in the opposite one.
//
// New binds the listeners and fails on everything that will not mend itself: a
// bad file, a taken port. It does not need etcd: a daemon that starts before
// its etcd lives, says that it is not ready, and recovers. Stop returns when
// all goroutines have joined, the transactions under way included.
package app
