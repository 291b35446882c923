// Package page renders the web pages: HTML templates, and the style sheet and scripts that
// they use, all embedded.
//
// Guaranteed: a page is complete and readable without scripts. Values from etcd are escaped,
// for HTML and for the eye: control characters and bidirectional overrides are shown, not
// obeyed. A page needs nothing from other origins and has neither inline script nor inline
// style, so that Policy can forbid both.
//
// Not guaranteed: that values are small; package api limits them. The package asks nobody
// for data and serves no requests: package web does.
package page
