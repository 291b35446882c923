// Package probe measures whether etcd takes renewals.
//
// Once in an interval it sends a request that passes through raft as a renewal
// does, and keeps the outages: the times in which no renewal could have come
// through. Its times are by our monotonic clock. It guarantees that an outage
// longer than the patience is never missed while Run runs; it cannot see a fault
// that lies between holders and etcd alone. It knows nothing of locks.
package probe
