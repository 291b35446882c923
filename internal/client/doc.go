// Package client queries the HTTP API of daemons, for the commands check, show and list.
//
// Guaranteed: it writes nothing, all requests are GET. It returns within the timeout and
// reads a bounded amount, whatever a daemon does. It follows no redirects and ignores
// proxy settings, so that only the daemon itself can answer. An answer that is not one of
// a daemon is an error; none of its errors quotes a credential.
//
// Not guaranteed: that text in an answer is safe to print.
package client
