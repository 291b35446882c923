// Package bench holds the measurements behind docs/performance.md. They run the
// real daemon against an embedded etcd that syncs to disk, and report ratios of
// things measured in one run, as absolute figures depend on the machine.
//
//	make bench-big
package bench
