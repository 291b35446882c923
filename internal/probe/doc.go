// Package probe measures whether etcd accepts renewals.
//
// At an interval it sends a request that passes through raft as a renewal does. It records the
// outages: the times in which no renewal could succeed, by the daemon's monotonic clock. It
// knows nothing about locks.
//
// Guaranteed: while Run runs, every outage longer than the patience is recorded. Not
// guaranteed: that a fault between the holders and etcd is detected.
package probe
