package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// shell is an interactive shell on a terminal of its own.
type shell struct {
	t        *testing.T
	terminal *os.File
	dir      string

	mu   sync.Mutex
	seen bytes.Buffer
	// kill ends the shell, and hangs the terminal up.
	kill func()
}

// openTerminal returns both ends of a new terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	number, unlock := uint32(0), int32(0)
	raw, err := master.SyscallConn() // with Fd, Close would not end a Read
	require.NoError(t, err)
	for request, p := range map[uintptr]unsafe.Pointer{syscall.TIOCGPTN: unsafe.Pointer(&number), syscall.TIOCSPTLCK: unsafe.Pointer(&unlock)} {
		require.NoError(t, raw.Control(func(fd uintptr) {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(p))
			require.Zero(t, errno)
		}))
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return master, slave
}

// newShell starts a shell in which $L is unlocker lock with the etcd.
func (e etcd) newShell() *shell {
	e.t.Helper()
	master, slave := openTerminal(e.t)
	s := &shell{t: e.t, terminal: master, dir: e.t.TempDir()}
	cmd := exec.Command("bash", "--norc", "--noprofile", "-i")
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.dir, slave, slave, slave
	cmd.Env = append(os.Environ(), asUnlocker+"=1", "TERM=dumb", "PS1=$ ", "HISTFILE=", "L="+os.Args[0]+" lock --etcd-endpoints "+e.Endpoints()[0],
		"U="+os.Args[0], "UNLOCKER_ETCD_ENDPOINTS="+e.Endpoints()[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(e.t, cmd.Start())
	require.NoError(e.t, slave.Close())
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s, master) // until the last process has closed the terminal
	}()
	s.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = master.Close()
		<-read
	})
	e.t.Cleanup(func() {
		s.kill()
		if e.t.Failed() {
			seen := s.seen.String()
			e.t.Logf("%q", seen[max(0, len(seen)-5000):])
		}
	})
	return s
}

// Write implements io.Writer for what the terminal shows.
func (s *shell) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.Write(p)
}

// enter types keys, and waits for a text that they do not have: the terminal echoes them.
func (s *shell) enter(keys, want string) {
	s.t.Helper()
	require.NotContains(s.t, keys, want)
	s.mu.Lock()
	s.seen.Reset()
	s.mu.Unlock()
	_, err := s.terminal.WriteString(keys)
	require.NoError(s.t, err)
	etcdtest.Eventually(s.t, func() bool { return strings.Contains(s.screen(), want) }, "%q: %q", keys, want)
}

// screen is what the terminal has shown since the last keys.
func (s *shell) screen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

const (
	controlC = "\x03"
	controlZ = "\x1a"
)

func TestLockOnATerminal(t *testing.T) {
	e := newEtcd(t)
	s := e.newShell()
	for name, test := range map[string]func(){
		"reads": func() {
			s.enter("$L a -- sh -c 'echo re\"\"ady; read x; echo got-$x; read y; echo and-$y'\n", "ready")
			s.enter("one\n", "got-one")
			s.enter("two\n", "and-two")
			s.enter("echo status-$?\n", "status-0")
		},
		"changes its modes": func() {
			s.enter("$L a -- sh -c 'stty -echo; stty echo; echo do\"\"ne'; echo status-$?\n", "status-0")
		},
		"Ctrl-C": func() {
			s.enter("$L a -- sh -c 'echo re\"\"ady; exec sleep 1000'\n", "ready")
			s.enter(controlC, "$ ")
			s.enter("echo status-$?\n", "status-130")
		},
		"waits": func() {
			e.take("waits", time.Hour, time.Hour)
			defer e.remove("waits")
			s.enter("$L waits -- true\n", "; waiting, Ctrl-C ends that")
			require.Contains(t, s.screen(), `lock "waits" is held by `)
			s.enter(controlC, "$ ")
			s.enter("echo status-$?\n", "status-130")
		},
		"waits for etcd": func() {
			s.enter("$U lock a -w 60 --etcd-endpoints 127.0.0.1:1 -- true\n", "; waiting, Ctrl-C ends that")
			require.Contains(t, s.screen(), "etcd at 127.0.0.1:1 was unreachable: dial tcp 127.0.0.1:1: connect: connection refused")
			s.enter(controlC, "$ ")
			s.enter("echo status-$?\n", "status-130")
		},
		"Ctrl-C after it has read": func() {
			s.enter("$L a -- sh -c 'read x; echo got-$x; exec sleep 1000'\nx\n", "got-x")
			s.enter(controlC, "$ ")
			s.enter("echo status-$?\n", "status-130")
		},
		"Ctrl-Z": func() {
			// Without children: a shell that has just begun one by vfork cannot be stopped until that runs.
			require.NoError(t, syscall.Mkfifo(filepath.Join(s.dir, "go"), 0o600))
			s.enter("$L a -- sh -c 'echo re\"\"ady; read x <go; read x; echo got-$x'\n", "ready")
			s.enter(controlZ, "Stopped")
			s.enter("jobs\n", "Stopped")
			s.enter("fg; echo status-$?\n", "$L a")
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600))
			s.enter("two\n", "got-two")
			s.enter("\n", "$ ")
		},
		"Ctrl-Z after it has read": func() {
			s.enter("$L a -- sh -c 'read x; echo got-$x; read y; echo and-$y'\none\n", "got-one")
			s.enter(controlZ, "Stopped")
			s.enter("fg; echo status-$?\n", "$L a")
			s.enter("two\n", "and-two")
			s.enter("\n", "$ ")
		},
		"background": func() {
			s.enter("$L a -- sh -c 'read x; echo got-$x' &\n", "$ ")
			etcdtest.Eventually(t, func() bool { // it waits for input
				s.enter("jobs\n", "[1]+")
				return strings.Contains(s.screen(), "Stopped")
			})
			s.enter("fg\n", "$L a")
			s.enter("two\n", "got-two")
			s.enter("echo status-$?\n", "status-0")
		},
		"gives it back": func() { // to a shell without job control
			s.enter("sh -c '$L a -- sh -c \"read x; echo got-\\$x\"; read y; echo and-$y'\none\n", "got-one")
			s.enter("two\n", "and-two")
		},
		"another in its pipeline reads": func() {
			s.enter("$L a -- echo x | sh -c 'read a; read b </dev/tty; echo $a-$b'\ny\n", "x-y")
			s.enter("echo status-$?\n", "status-0")
		},
	} {
		t.Run(name, func(*testing.T) {
			test()
			require.Empty(t, e.Keys(""))
		})
	}
}
