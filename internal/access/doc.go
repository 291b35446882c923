// Package access tries whether the daemon, with its configuration, can do in etcd what it needs
// to: connect to each endpoint, log in, and use each right.
//
// Guaranteed: no key is written or deleted. The rights to write and to delete are tried by a
// transaction whose condition is never true: etcd checks the rights of all its operations first,
// and executes none. A lease without keys is granted and revoked. Each attempt ends after
// etcd.request_timeout.
//
// Not guaranteed: that the daemon will work. A later change of a role is not seen, and one
// member may have answered for all of them.
package access
