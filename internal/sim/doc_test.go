// Package sim runs the daemon's real parts (scanner, table, probe, reaper, elector) on
// an etcd in memory, or on a real server, under virtual time, with simulated holders and
// faults. Its suite of scripts and random requests holds the one in memory to a real one.
//
// A history is a value: what holders, clocks, networks and etcd do, and when. Judges
// hold each run against the promises S1 to S8. They compute from what etcd carried
// out, what was injected and what the simulated holders did, never from the state of a
// daemon. Of the daemon they judge its requests, its log, and what the API shows: its holds, its verdict on
// each lock at some instants (a forecast of its removal), its locks, counters and removals.
//
// Guaranteed: a history that a judge convicts breaks a promise as it is specified.
// Each judge convicts at least one daemon from which a rule was taken out.
//
// Not guaranteed: that a repeated history interleaves equally, as the daemon's own
// backoff is random. A process that is stopped cannot be simulated, only the answers
// of etcd that wait for it: its timers would stop as well.
package sim
