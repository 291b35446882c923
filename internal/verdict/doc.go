// Package verdict decides whether a lock may be removed.
//
// It implements the promises S2, S3 and S8 of docs/safety.md: what a verdict depends on
// (Inputs), the decision (Decide), the rules and policies of the configuration (Rules), and
// the holds that stop all automatic removals (Holds).
//
// Guaranteed: the same inputs give the same verdict. Everything is a function of values, or a
// state machine that gets the time as an argument. There is no clock, goroutine, I/O or log.
//
// Not guaranteed: that the inputs are current. The transaction of package lockstore checks
// that.
package verdict
