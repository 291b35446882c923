//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

// outcome is the exit code and the output of a command.
type outcome struct {
	code           int
	stdout, stderr string
}

// command runs the binary with an etcd until it ends.
func command(t *testing.T, addr string, args ...string) outcome {
	t.Helper()
	return finish(t, exec.CommandContext(t.Context(), unlocker, append(append(args, "--etcd-endpoints", addr), patient...)...))
}

// patient are flags with which no etcd is too slow on a busy machine.
var patient = []string{"--etcd-dial-timeout", "1m", "--etcd-request-timeout", "1m"}

func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &out, &err
	_ = cmd.Run() // ProcessState has the result
	require.NotNil(t, cmd.ProcessState, "the command did not start")
	return outcome{cmd.ProcessState.ExitCode(), out.String(), err.String()}
}

// The commands, on each version of etcd, without a daemon.
func TestCommands(t *testing.T) {
	for _, version := range supported() {
		t.Run(version, func(t *testing.T) {
			etcd := startEtcd(t, version)
			later := time.Now().Add(time.Hour)
			etcd.putLocks("a", 300, later, later)
			etcd.putLocks("a/00000", 1, later, later)

			o := command(t, etcd.addr, "list", "-o", "name")
			require.Equal(t, 0, o.code, o.stderr)
			require.Equal(t, 301, strings.Count(o.stdout, "\n"))
			require.True(t, strings.HasPrefix(o.stdout, "a/00000\na/00000/00000\na/00001\n"), o.stdout)
			require.Empty(t, o.stderr)

			o = command(t, etcd.addr, "show", "a/00000")
			require.Equal(t, 0, o.code, o.stderr)
			require.Regexp(t, `\nUUID: +uuid of a/00000\nHostname: +worker-1.example.org\n`, o.stdout)

			o = command(t, etcd.addr, "unlock", "a/00000", "--uuid", "uuid of a/00001", "--yes")
			require.Equal(t, 1, o.code)
			require.Contains(t, o.stderr, "another uuid")
			o = command(t, etcd.addr, "unlock", "a/00000", "--uuid", "uuid of a/00000", "--yes", "-o", "json")
			require.Equal(t, 0, o.code, o.stderr)
			var removed struct {
				Revision int64
				Fields   []struct{ Name, Value string }
			}
			require.NoError(t, json.Unmarshal([]byte(o.stdout), &removed))
			require.Len(t, removed.Fields, fieldsOfALock)
			count, revision := etcd.keys("")
			require.EqualValues(t, 300*fieldsOfALock, count, "the nested lock stays")
			require.Equal(t, revision, removed.Revision)
			o = command(t, etcd.addr, "unlock", "a/00000", "--uuid", "uuid of a/00000", "--yes")
			require.Equal(t, 1, o.code)
			require.Contains(t, o.stderr, `no lock "a/00000"`)

			o = command(t, etcd.addr, "pause", "--match", "a/**", "--for", "1h", "--reason", "a test")
			require.Equal(t, 0, o.code, o.stderr)
			o = command(t, etcd.addr, "resume", "--match", "a/**")
			require.Equal(t, 0, o.code, o.stderr)
			require.Regexp(t, `^resumed: locks that match "a/\*\*" under /mutexes/; it was paused until .*\n$`, o.stdout)
		})
	}
}

// A manual unlock works during a hold. The daemon does not count it as a removal of its own.
func TestUnlockDuringAHold(t *testing.T) {
	etcd := startEtcd(t, newest)
	d := startDaemon(t, etcd.addr, "--reaper-settle", "10m")
	d.awaitMetric(1, "unlocker_reaper_hold", "reason", "starting")
	past := time.Now().Add(-time.Minute)
	etcd.putLocks("due", 1, past, past)
	d.awaitMetric(1, "unlocker_locks", "state", "expired")
	o := command(t, etcd.addr, "unlock", "due/00000", "--uuid", "uuid of due/00000", "--reason", "OPS-1", "--yes")
	require.Equal(t, 0, o.code, o.stderr)
	d.awaitMetric(0, "unlocker_locks", "state", "expired")
	d.awaitMetric(1, "unlocker_lock_releases_total", "by", "other")
	d.awaitMetric(1, "unlocker_forced_unlocks_total", "trigger", "manual")
	require.EqualValues(t, 1, d.metric("unlocker_forced_unlocks_total"))
	require.Equal(t, "OPS-1", d.awaitLine(api.LogUnlocked)["reason"])
}

// At a terminal the command asks for confirmation, and does nothing without a yes.
func TestUnlockAsksAtATerminal(t *testing.T) {
	script := program(t, "script") // runs a command in a terminal
	etcd := startEtcd(t, newest)
	later := time.Now().Add(time.Hour)
	etcd.putLocks("a", 1, later, later)
	for _, answer := range []struct {
		text string
		code int
		left int64
	}{{"n\n", 1, fieldsOfALock}, {"\n", 1, fieldsOfALock}, {"y\n", 0, 0}} {
		line := fmt.Sprintf("%s unlock a/00000 --uuid 'uuid of a/00000' --etcd-endpoints %s %s", unlocker, etcd.addr, strings.Join(patient, " "))
		cmd := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
		keyboard, err := cmd.StdinPipe()
		require.NoError(t, err)
		var screen etcdtest.Log
		cmd.Stdout, cmd.Stderr = &screen, &screen
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			return strings.Contains(screen.String(), "Remove lock a/00000, held by worker-1.example.org? Its holder may still be working. [y/N] ")
		}, soon, poll)
		_, err = io.WriteString(keyboard, answer.text)
		require.NoError(t, errors.Join(err, keyboard.Close()))
		_ = cmd.Wait() // ProcessState has the result
		require.Equal(t, answer.code, cmd.ProcessState.ExitCode(), screen.String())
		count, _ := etcd.keys("")
		require.Equal(t, answer.left, count)
	}
}

// SIGINT ends a command at once that waits for etcd.
func TestCommandsAreInterrupted(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nothing answers
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	for _, args := range [][]string{{"list"}, {"show", "a"}, {"unlock", "a", "--uuid", "u", "--yes"}} {
		p := start(t, unlocker, append(args, "--etcd-endpoints", silent.Addr().String(), "--etcd-dial-timeout", "1m", "--etcd-request-timeout", "1m", "--log-level", "debug")...)
		require.Eventually(t, func() bool { return p.log.String() != "" }, soon, poll, "the etcd client has not started")
		code, took := p.end(syscall.SIGINT)
		require.Equal(t, 1, code)
		require.Less(t, took, time.Minute, "it waited for the timeout")
		require.Contains(t, p.log.String(), "unlocker: interrupted")
	}
}

// A list of many locks needs little memory in every output format.
func TestListOfManyLocks(t *testing.T) {
	t.Parallel()
	const locks = 50_000
	etcd := startEtcd(t, newest)
	later := time.Now().Add(time.Hour)
	etcd.putLocks("many", locks, later, later)
	for format, want := range map[string]int{"name": locks, "table": locks + 1, "wide": locks + 1, "json": 12*locks + 4, "yaml": 10*locks + 1} {
		began := time.Now()
		lines, peak := measure(t, etcd.addr, format)
		t.Logf("%d locks as %s: %s, %d MiB", locks, format, time.Since(began).Round(time.Millisecond), peak>>10)
		require.Equal(t, want, lines)
		require.Less(t, peak, 120<<10)
	}
}

// measure lists all locks, and returns the number of lines and the peak of the memory in KiB.
// It reads the peak after more was printed than fits into the pipe, when all locks were read.
func measure(t *testing.T, addr, format string) (lines, peak int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), unlocker, "list", "-o", format, "--etcd-endpoints", addr)
	cmd.Dir = t.TempDir()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	begin := make([]byte, 256<<10)
	n, err := io.ReadFull(stdout, begin)
	require.NoError(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	require.NoError(t, err)
	rest, err := io.ReadAll(stdout)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	_, value, found := strings.Cut(string(status), "VmHWM:")
	require.True(t, found, "%s", status)
	_, err = fmt.Sscanf(value, "%d kB", &peak)
	require.NoError(t, err)
	return bytes.Count(begin[:n], []byte("\n")) + bytes.Count(rest, []byte("\n")), peak
}
