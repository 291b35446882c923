//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// process is a process that is killed when the test ends.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	log  etcdtest.Log
}

// start runs a program in an empty directory without UNLOCKER_ variables.
func start(t *testing.T, path string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "UNLOCKER_") })
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // ProcessState has the result
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the last of %s:\n%s", path, p.log.Tail(15))
		}
	})
	return p
}

// line returns the newest line of the JSON log with the message, or nil.
func (p *process) line(msg string) map[string]any {
	lines := p.log.Lines(msg)
	if len(lines) == 0 {
		return nil
	}
	return lines[len(lines)-1]
}

// awaitLine waits for a line with the message, which may come later than what the process does next.
func (p *process) awaitLine(msg string) map[string]any {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.line(msg) != nil }, soon, poll, "%s is not logged", msg)
	return p.line(msg)
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// suspend stops the process, and returns when each of its threads has stopped: until then it may
// answer.
func (p *process) suspend() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(p.t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			_, state, found := strings.Cut(string(stat), ") ")
			return err == nil && found && !strings.HasPrefix(state, "T")
		})
	}, soon, time.Millisecond)
}

func (p *process) resume() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// end sends a signal, waits for the end, and returns the exit code and the duration.
func (p *process) end(sig syscall.Signal) (code int, took time.Duration) {
	p.t.Helper()
	begin := time.Now()
	require.NoError(p.t, p.cmd.Process.Signal(sig))
	select {
	case <-p.done:
	case <-time.After(soon):
		require.FailNow(p.t, "the process does not end")
	}
	return p.cmd.ProcessState.ExitCode(), time.Since(begin)
}
