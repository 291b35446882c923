// Package check queries daemons about themselves and their locks, through package client,
// and turns the answers into the result of a Nagios plugin: one of four states, a line of
// text with performance data, and more lines on request.
//
// It guarantees:
//
//   - OK means that at least one daemon knows all locks at this moment and that no rule
//     is violated. A daemon that does not answer, has not listed the locks yet, or cannot
//     reach etcd never makes a result OK.
//   - The answers of a daemon count together or not at all: if one of several requests
//     fails, its other answers are not used.
//   - The output is printable text of at most 8,000 bytes. No name of a lock or host can
//     end the line, begin the performance data, or reach a shell.
//
// It does not guarantee that forced unlocks are complete: a daemon reports those that it
// did itself since its start, within its retention.
package check
