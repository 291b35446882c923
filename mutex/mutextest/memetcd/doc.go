// Package memetcd is an etcd cluster in memory, for simulations under virtual
// time. Its clients are real: a [Link] has a clientv3.Client whose innermost
// gRPC interceptors answer from memory instead of the network. So retries,
// token refresh, the resumption of watches, lease keep-alives and the words of
// errors are those of the client library, and production code runs on it as
// it is.
//
// Guaranteed: keys, revisions, transactions, leases, compaction, watches and
// alarms answer as those of etcd 3.7 do, with the client libraries of 3.5, 3.6
// and 3.7; one suite of operations runs against both. What blocks waits for channels and timers only, so that a
// testing/synctest bubble in which cluster and clients were made can move its
// clock. Nothing that a client observes depends on the order of a map.
//
// Not guaranteed: timing within etcd. Requests take no time unless [Faults] say
// so, a lease ends exactly at its TTL, and the members' states differ only by
// [Faults]. There is one permission per client instead of users and roles.
// Responses of watches are never split into fragments, which the client library
// would join. Membership, snapshots as a download, defragmentation, hashes and
// leader transfer are Unimplemented, and a request's size is estimated.
//
// This package links by go:linkname, once, and nothing else in the module does:
// it sets a channel of the client library to nil, which was made outside of
// every bubble and for which all watches wait, so that time would stop.
// The repository's ADR 25 says why there is no other way.
package memetcd
