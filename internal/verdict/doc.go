// Package verdict decides whether a lock may be removed.
//
// It holds the rules of promises S2, S3 and S8: what a verdict depends on
// (Inputs), the decision (Decide), the rules and policies of the configuration
// (Rules), and the holds that stop every automatic removal (Holds).
//
// It guarantees that the same inputs give the same verdict: everything in it is a
// function of values, or a state machine that is given the time. It has no clock,
// no goroutine, no I/O and no log. It does not know whether the inputs are
// current, and it removes nothing: the guarded transaction of package lockstore
// has the last word.
package verdict
