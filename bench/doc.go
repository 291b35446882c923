// Package bench contains the measurements of docs/performance.md. They run the daemon
// against an embedded etcd that syncs to disk, and package mutex against one in a process of
// its own. Absolute figures depend on the machine, so most of them are also reported as a
// ratio to another one of the same run. Those of package mutex need redis-server.
//
//	make bench-big
package bench
