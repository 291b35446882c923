// Package e2e holds tests with real programs: the binary that the Makefile
// builds, etcd servers of all versions that users have, Prometheus, Alertmanager,
// Icinga, systemd. They need the
// build tag e2e; `make e2e` runs them. Where a program is missing a test is
// skipped, but not in CI (CI=true), where it fails.
package e2e
