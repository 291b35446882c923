package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// screen keeps what is written to it.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) await(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.Eventually(t, func() bool { return strings.Contains(s.String(), text) }, soon, poll, "%q is missing in:\n%s", text, s)
	}
}

// found returns what a group matched.
func (s *screen) found(t *testing.T, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(s.String())
	require.NotNil(t, m, "%s in:\n%s", pattern, s)
	return m[1]
}

// process is a demo in a process and with a temporary directory of its own.
type process struct {
	cmd       *exec.Cmd
	tmp       string
	out, errs screen
	exit      chan error
}

func newPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	return r, w
}

func newProcess(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	d := &process{cmd: exec.Command(self, args...), tmp: t.TempDir(), exit: make(chan error, 1)}
	d.cmd.Env = append(os.Environ(), asDemo+"=1", "TMPDIR="+d.tmp)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.errs
	return d
}

func startDemo(t *testing.T, args ...string) *process {
	t.Helper()
	d := newProcess(t, args...)
	d.start(t)
	return d
}

func (d *process) start(t *testing.T) {
	t.Helper()
	require.NoError(t, d.cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.exit <- d.cmd.Wait()
	}()
	t.Cleanup(func() {
		if err := d.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
			require.NoError(t, err)
		}
		<-done
	})
}

// end sends a signal; the demo must then go in time and leave nothing.
func (d *process) end(t *testing.T, s syscall.Signal) error {
	t.Helper()
	require.NoError(t, d.cmd.Process.Signal(s))
	return d.wait(t, promised)
}

func (d *process) wait(t *testing.T, most time.Duration) error {
	t.Helper()
	select {
	case err := <-d.exit:
		left, readErr := os.ReadDir(d.tmp)
		require.NoError(t, readErr)
		require.Empty(t, left)
		return err
	case <-time.After(most):
		t.Fatalf("still there after %v:\n%s", most, &d.out)
		return nil
	}
}
