//go:build e2e

// Package e2e contains the tests with real programs: the binary that the Makefile builds,
// etcd servers of several versions, Prometheus, Alertmanager, Icinga, systemd, Chromium, a Kubernetes API
// server, and whatever else the commands of the documentation use. They need
// the build tag e2e; `make e2e` runs them. If a program is missing, its tests are skipped. In
// CI (CI=true) they fail.
package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// unlocker is the path of the binary under test.
var unlocker string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // a TestMain does
}

// buildAndRun builds the binary by the Makefile, and runs the tests.
func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "unlocker-e2e-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "make", "-C", "..", "build", "BIN="+dir).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("make build: %w\n%s", err, out)
	}
	unlocker = filepath.Join(dir, "unlocker")
	defer func() { stopChromium() }()
	return m.Run(), nil
}

// missing skips the test, or fails it in CI.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// program returns the path of a program. If it is not installed, the test is skipped or fails.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "%s is not installed", name)
	}
	return path
}
