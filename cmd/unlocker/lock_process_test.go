package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// holding is a process of unlocker lock.
type holding struct {
	t    *testing.T
	cmd  *exec.Cmd
	dir  string
	done chan struct{}

	mu             sync.Mutex
	stdout, stderr bytes.Buffer
}

// lock starts unlocker lock with an etcd, in an empty directory.
func (e etcd) lock(args ...string) *holding { return e.lockAt(e.Endpoints()[0], args...) }

func (e etcd) lockAt(endpoint string, args ...string) *holding {
	e.t.Helper()
	h := newHolding(e.t, slices.Concat([]string{"lock", "--etcd-endpoints", endpoint}, args)...)
	h.start()
	return h
}

func newHolding(t *testing.T, args ...string) *holding {
	t.Helper()
	h := &holding{t: t, dir: t.TempDir(), done: make(chan struct{})}
	h.cmd = exec.Command(os.Args[0], args...)
	h.cmd.Dir, h.cmd.Env = h.dir, append(os.Environ(), asUnlocker+"=1")
	h.cmd.Stdout, h.cmd.Stderr = locked{h, &h.stdout}, locked{h, &h.stderr}
	h.cmd.WaitDelay = 10 * time.Second // a child that is left must not block the test
	return h
}

func (h *holding) start() {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Start())
	go func() {
		defer close(h.done)
		_ = h.cmd.Wait() // ProcessState has the result
	}()
	h.t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		<-h.done
	})
}

type locked struct {
	h *holding
	b *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.b.Write(p)
}

func (h *holding) out() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stdout.String()
}

// await waits for a text on stdout.
func (h *holding) await(text string) {
	h.t.Helper()
	etcdtest.Eventually(h.t, func() bool { return strings.Contains(h.out(), text) }, text)
}

// awaitErr waits for a text on stderr.
func (h *holding) awaitErr(text string) {
	h.t.Helper()
	etcdtest.Eventually(h.t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return strings.Contains(h.stderr.String(), text)
	}, text)
}

func (h *holding) signal(s syscall.Signal) {
	h.t.Helper()
	require.NoError(h.t, h.cmd.Process.Signal(s))
}

// end waits for the exit code, and returns it with what was printed to stderr.
func (h *holding) end() (code int, stderr string) {
	h.t.Helper()
	select {
	case <-h.done:
	case <-time.After(etcdtest.Soon):
		require.FailNow(h.t, "unlocker lock does not end", h.out())
	}
	return h.cmd.ProcessState.ExitCode(), h.stderr.String()
}

// proceed lets a command end that waits for the file "go".
func (h *holding) proceed() {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "go"), nil, 0o600))
}

// waiting is a shell command that ends when the test says proceed.
const waiting = "until [ -e go ]; do sleep 0.02; done; "

// pids returns the process ids that a command has printed, one a line after a word.
func (h *holding) pids(word string) (pids []int) {
	h.t.Helper()
	for line := range strings.Lines(h.out()) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), word+" "); found {
			pid, err := strconv.Atoi(text)
			require.NoError(h.t, err)
			pids = append(pids, pid)
		}
	}
	require.NotEmpty(h.t, pids)
	return pids
}

// lastLine returns the time in the last whole line of a file that the command writes.
func (h *holding) lastLine(name string) time.Time {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name))
	require.NoError(h.t, err)
	lines := strings.Split(string(text), "\n")
	require.Greater(h.t, len(lines), 1)
	at, err := protocol.ParseTimestamp([]byte(lines[len(lines)-2]))
	require.NoError(h.t, err)
	return at.Time()
}

// dead reports whether a process has ended, and may be a zombie.
func dead(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// requireDead waits until the processes have ended.
func requireDead(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		etcdtest.Eventually(t, func() bool { return dead(pid) }, "process %d lives", pid)
	}
}

// field returns a field of a lock, and "" if there is none.
func (e etcd) field(name, field string) string {
	e.t.Helper()
	resp, err := e.Client.Get(e.t.Context(), e.Prefix+name+"/"+field)
	require.NoError(e.t, err)
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

// deadline returns auto_unlock_at of a lock.
func (e etcd) deadline(name string) time.Time {
	e.t.Helper()
	at, err := protocol.ParseTimestamp([]byte(e.field(name, "auto_unlock_at")))
	require.NoError(e.t, err)
	return at.Time()
}

// remove removes a lock as a person does.
func (e etcd) remove(name string) {
	e.t.Helper()
	_, err := e.Client.Delete(e.t.Context(), e.Prefix+name+"/", clientv3.WithPrefix())
	require.NoError(e.t, err)
}
