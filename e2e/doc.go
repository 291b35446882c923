// Package e2e contains the tests with real programs: the binary that the Makefile builds,
// etcd servers of several versions, Prometheus, Alertmanager, Icinga, systemd, Chromium, a Kubernetes API
// server, and whatever else the commands of the documentation use. They need
// the build tag e2e; `make e2e` runs them. If a program is missing, its tests are skipped. In
// CI (CI=true) they fail.
package e2e
