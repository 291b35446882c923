// Package hunt looks for broken promises on real etcd: three members, several
// daemons, some hundred owners, and faults in all of them at once. What happened
// is then judged from outside, by a replay of every revision and by what each
// owner did by its own clock; the daemons' words count only as the sums to be
// compared.
//
// It guarantees that a violation it reports happened: where a moment is known
// within bounds only, the bound that acquits is taken. It does not guarantee that
// a violation is seen, nor that a seed gives the same run again: the seed fixes
// what is done, not when a busy machine does it. Members are never parted from
// each other, no disk is full, and no clock steps.
package hunt
