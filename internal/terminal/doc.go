// Package terminal makes text from etcd, from servers and from command lines safe to
// print, formats times and durations, and draws on terminals. All commands and the API use it.
//
// Guaranteed: in what the functions for text return there is no control character but the
// line ends that Text and the encodings keep, no escape sequence, no bidirectional override, no
// invisible character and no invalid byte, and Unquote returns what Quote was given.
// Not guaranteed: that two names that look the same are the same, since letters of
// different scripts may look alike. The length is bounded by Truncate only.
package terminal
