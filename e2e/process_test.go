//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a program that the test started, and kills at its end.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	log []string
}

// start runs a program in an empty directory without UNLOCKER_ variables.
func start(t *testing.T, path string, args ...string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "UNLOCKER_") })
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	require.NoError(t, cmd.Start())
	go p.read(r)
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the state tells
		_ = w.Close()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the last of %s:\n%s", path, strings.Join(p.tail(15), "\n"))
		}
	})
	return p
}

func (p *process) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.mu.Lock()
		p.log = append(p.log, lines.Text())
		p.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r)
}

func (p *process) tail(n int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log[max(0, len(p.log)-n):])
}

// line returns the newest line of a JSON log with this message.
func (p *process) line(msg string) (line map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.log {
		var l map[string]any
		if json.Unmarshal([]byte(text), &l) == nil && l["msg"] == msg {
			line = l
		}
	}
	return line
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// end sends a signal and returns the exit code, and how long the end took.
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
