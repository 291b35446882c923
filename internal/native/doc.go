// Package native reads the locks and elections of etcd's own clients (concurrency.Mutex and
// Election, etcdctl lock and elect, the services v3lock and v3election): keys named by a lease,
// NAME/LEASE, of which the oldest below NAME/ holds.
//
// Guaranteed: nothing is written. What a listing reads and keeps is limited, since any client may
// have written it, and values and leases are read only for what is shown, a limited number at a
// time and for a limited time. A failure of a prefix is part of its answer and of nothing else.
//
// Not guaranteed: that every change is noticed. A prefix is listed every few seconds, keys only:
// a watch would deliver the value of each write below it. So a key that holds for less than that
// may never be seen.
package native
