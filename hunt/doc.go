// Package hunt looks for violations of the promises in docs/safety.md on real etcd: three
// members, three daemons and 160 holders, with faults in all of them at the same time. Members
// and daemons are processes, and the hunt sets the daemons' clocks. With an odd seed all of them
// log in, with tokens that expire. The result is checked independently of the daemons, by a
// replay of every revision and by what each holder did by its own clock. The logs of the daemons
// are only compared with it. Restores have a hunt of their own, TestRestores. It runs on Linux
// only.
//
// Guaranteed: a reported violation happened. If a time is known only within bounds, the
// check uses the bound with which there is no violation.
//
// Not guaranteed: that every violation is found, or that a seed repeats a run. The seed
// fixes what is done, but not when a busy machine does it. There is no full disk. A slow disk is
// imitated: the whole member stalls, and not only its fsync.
//
// With HUNT_WITHOUT, one rule is taken out of the daemon (without_test.go has the names), and
// the hunt must fail.
package hunt
