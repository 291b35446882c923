// Package check asks daemons how they and their locks are, and judges the answers
// in the way of a Nagios plugin: one of four states, a line of text, numbers for
// graphs, and more lines for who wants them.
//
// It guarantees:
//
//   - OK means that at least one daemon sees all locks at this moment and nothing
//     is wrong as far as the rules tell. A daemon that cannot be reached, has not
//     listed the locks, or does not see etcd never makes a result OK.
//   - A daemon answers whole or not at all: where one request of several fails,
//     its other answers are not used.
//   - Ask ends within the timeout, whatever a daemon does, and reads a bounded
//     amount.
//   - What is printed is one screen of printable text, in 8,000 bytes. No name of a
//     lock or host can end the line, begin the numbers, or reach a shell.
//
// It does not guarantee that forced unlocks are complete: a daemon tells those that
// it did itself since its start, within its retention. Nor does it write anything:
// all requests are GET.
package check
