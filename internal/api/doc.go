// Package api is the shape of what the daemon's HTTP interface answers, and of
// what list and show print with -o json: one set of names for those who write
// it and those who read it.
//
// Times are RFC 3339 in UTC, left out where there are none; durations are
// seconds. All strings come from etcd unless said otherwise: they are valid
// UTF-8 and bounded, but say whatever their writer wanted.
package api
