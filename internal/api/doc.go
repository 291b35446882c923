// Package api has the types of the JSON that the daemon's HTTP API answers and that the
// commands print with -o json, and the log messages: the names that programs outside look for.
// Those that write them and those that read them share them.
//
// Guaranteed: times are RFC 3339 in UTC and left out where there are none; strings are
// valid UTF-8 and bounded. Clock offsets are seconds, the durations of a verdict are
// nanoseconds as in the log. Not guaranteed: that a string is safe to print. Most of them
// come from etcd, where any client may have written them.
package api
