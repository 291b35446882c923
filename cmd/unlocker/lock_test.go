package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/job"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
)

func TestLockPassesTheExitStatusOn(t *testing.T) {
	e := newEtcd(t)
	dir := t.TempDir()
	script := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	for _, c := range []struct {
		command []string
		code    int
		stderr  string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "exit 7"}, 7, ""},
		{[]string{"sh", "-c", "exit 122"}, 122, ""},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
		{[]string{"absent-command"}, 127, "unlocker: exec: \"absent-command\": executable file not found in $PATH\n"},
		{[]string{filepath.Join(dir, "absent")}, 127, "no such file or directory\n"},
		{[]string{script("plain", "text", 0o600)}, 126, "permission denied\n"},
		{[]string{dir}, 126, "is a directory\n"},
		{[]string{script("format", "text", 0o700)}, 126, "exec format error\n"},
		{[]string{script("interpreter", "#!/absent\n", 0o700)}, 127, "no such file or directory\n"},
	} {
		code, stderr := e.lock(append([]string{"a", "--"}, c.command...)...).end()
		require.Equal(t, c.code, code, "%v: %s", c.command, stderr)
		require.True(t, strings.HasSuffix(stderr, c.stderr) && (c.stderr != "" || stderr == ""), stderr)
		require.Empty(t, e.Keys(""), "the lock is released")
	}
}

func TestLockTellsTheCommandAndEtcd(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("--purpose", "the November run", "billing/in voices", "--", "sh", "-c",
		`printf '%s|%s|%s\n' "$UNLOCKER_LOCK_NAME" "$UNLOCKER_LOCK_UUID" "$UNLOCKER_FENCING_TOKEN"; `+waiting, "sh", "a secret")
	h.await("\n")
	resp, err := e.Client.Get(t.Context(), e.Prefix+"billing/in voices/uuid")
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	require.Equal(t, fmt.Sprintf("billing/in voices|%s|%d\n", resp.Kvs[0].Value, resp.Kvs[0].CreateRevision), h.out())
	for field, want := range map[string]string{
		"owner": "sh", "purpose": "the November run", "pid": fmt.Sprint(h.cmd.Process.Pid), "command": "/usr/bin/sh", "backtrace": "", "stack": "",
	} {
		require.Equal(t, want, e.field("billing/in voices", field), field)
	}
	all, err := e.Client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(all.Kvs), "secret", "arguments may be secret")
	h.proceed()
	code, stderr := h.end()
	require.Zero(t, code, stderr)
	require.Empty(t, e.Keys(""))
}

// A shell would show only one of two variables with the same name.
func TestLockReplacesTheVariablesOfALockAroundIt(t *testing.T) {
	e := startEtcd(t, localetcd.Options{})
	t.Setenv("UNLOCKER_LOCK_UUID", "of a lock around this one")
	h := e.lock("a", "--", "env")
	code, stderr := h.end()
	require.Zero(t, code, stderr)
	require.Equal(t, 1, strings.Count(h.out(), "UNLOCKER_LOCK_UUID="))
	require.NotContains(t, h.out(), "around")
}

func TestLockConflict(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, time.Hour)
	e.Set("hostile", "uuid", "u", "owner", "\x1b[2J\u202e"+strings.Repeat("x", 1<<20), "purpose", "\n\nunlocker: all is well")
	began := time.Now()
	h := e.lock("a", "-w", "10", "-E", "75", "--", "touch", "ran") // for etcd, too
	code, stderr := e.lock("a", "--timeout", "0", "--", "touch", "ran").end()
	require.Equal(t, exitConflict, code)
	require.Regexp(t, `^unlocker: lock "a" is held by "billing" on "worker-1" .*since .* until .*\n$`, stderr)
	for _, status := range []string{"0", "75"} {
		code, stderr = e.lock("a", "-n", "-q", "-E", status, "--", "touch", "ran").end()
		require.Equal(t, status, strconv.Itoa(code))
		require.Empty(t, stderr)
	}
	code, stderr = h.end()
	require.Equal(t, 75, code)
	require.Greater(t, time.Since(began), 10*time.Second)
	require.Regexp(t, `^unlocker: lock "a" is held by "billing" .*: not released within 10s\n$`, stderr)
	require.NoFileExists(t, filepath.Join(h.dir, "ran"))
	code, stderr = e.lock("hostile", "--timeout", "0", "--", "true").end()
	require.Equal(t, exitConflict, code)
	require.NotContains(t, stderr, "\x1b")
	require.NotContains(t, stderr, "\u202e")
	require.Equal(t, 1, strings.Count(stderr, "\n"))
	require.Less(t, len(stderr), maxError)
}

func TestLockSlots(t *testing.T) {
	e := newEtcd(t)
	var holders []*holding
	for range 2 {
		h := e.lock("a", "--slots", "2", "--", "sh", "-c", "echo $UNLOCKER_LOCK_NAME; "+waiting)
		h.await("\n")
		holders = append(holders, h)
	}
	require.ElementsMatch(t, []string{"a/0\n", "a/1\n"}, []string{holders[0].out(), holders[1].out()})
	code, stderr := e.lock("a", "--slots", "2", "-n", "--", "true").end()
	require.Equal(t, exitConflict, code)
	require.Regexp(t, `^unlocker: the 2 slots of "a" are held, one of them by "sh" on .*\n$`, stderr)
	third := e.lock("a", "--slots", "2", "--", "sh", "-c", "echo $UNLOCKER_LOCK_NAME")
	holders[1].proceed()
	for _, h := range []*holding{holders[1], third} {
		code, stderr = h.end()
		require.Zero(t, code, stderr)
	}
	require.Equal(t, holders[1].out(), third.out())
	holders[0].proceed()
	_, _ = holders[0].end()
	require.Empty(t, e.Keys(""))
}

func TestLockWaits(t *testing.T) {
	e := newEtcd(t)
	first := e.lock("a", "--", "sh", "-c", "echo first; "+waiting)
	first.await("first")
	second := e.lock("a", "--timeout", "1m", "--", "echo", "second")
	require.Empty(t, second.out())
	first.proceed()
	code, stderr := first.end()
	require.Zero(t, code, stderr)
	code, stderr = second.end()
	require.Zero(t, code, stderr)
	require.Empty(t, stderr, "it waits quietly where there is no terminal")
	require.Equal(t, "second\n", second.out())
	require.Empty(t, e.Keys(""))
}

func TestLockWaitsForEtcd(t *testing.T) {
	e := newEtcd(t)
	p := e.Proxy(0)
	p.Break()
	h := e.lockAt(p.Addr(), "a", "--etcd-dial-timeout", "100ms", "--etcd-request-timeout", "100ms", "-w", "60", "--", "echo", "ran")
	<-time.After(time.Second) // longer than it waits without a timeout; more does not hurt
	require.NoError(t, p.Heal())
	code, stderr := h.end()
	require.Zero(t, code, stderr)
	require.Equal(t, "ran\n", h.out())
}

func TestLockIsHeldAtLeast(t *testing.T) {
	e := newEtcd(t)
	began := time.Now()
	code, stderr := e.lock("a", "--at-least", "1s", "--", "sh", "-c", "exit 3").end()
	require.Equal(t, 3, code, stderr)
	require.Greater(t, time.Since(began), time.Second)
	h := e.lock("a", "--at-least", "1h", "--", "sh", "-c", "echo child $$")
	h.await("child")
	requireDead(t, h.pids("child")...)
	code, stdout, stderr := e.call(nil, "ask", "a")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "sh is not running", "its pid may be another's by now")
	code, _ = e.lock("a", "-n", "--", "true").end()
	require.Equal(t, exitConflict, code)
	require.NoError(t, h.cmd.Process.Signal(syscall.SIGTERM))
	code, stderr = h.end()
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Empty(t, e.Keys(""))
}

// Who stops the job does not wait for the time that it has not needed.
func TestSignalsEndAtLeast(t *testing.T) {
	e := newEtcd(t)
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		h := e.lock("a", "--at-least", "1h", "--", "sh", "-c", `trap "exit 7" TERM INT HUP QUIT; echo ready; while :; do sleep 0.02; done`)
		h.await("ready")
		h.signal(end)
		code, stderr := h.end()
		require.Equal(t, 7, code, stderr)
		require.Empty(t, e.Keys(""), "so that another one may try")
	}
}

func TestLockIsInterruptedWhileItWaits(t *testing.T) {
	e := newEtcd(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nothing answers
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	e.take("a", time.Hour, time.Hour)
	for _, endpoint := range []string{e.Endpoints()[0], silent.Addr().String()} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			h := e.lockAt(endpoint, "a", "--log-level", "debug", "--etcd-dial-timeout", "1m", "--etcd-request-timeout", "1m", "--", "true")
			h.awaitErr("level=") // the etcd client has started
			h.signal(s)
			code, stderr := h.end()
			require.Equal(t, exitSignal+int(s), code, stderr)
			require.Contains(t, stderr, "unlocker: interrupted: "+s.String()+"\n")
		}
	}
	require.Len(t, e.Keys(""), 6, "that of the other")
}

// A signal may come before the command has taken the signals over.
func TestLockIsInterruptedAtItsStart(t *testing.T) {
	e := newEtcd(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&job.Interrupted{Signal: syscall.SIGINT})
	mark := filepath.Join(t.TempDir(), "ran")
	code, _, stderr := call(t, ctx, "lock", "--etcd-endpoints", e.Endpoints()[0], "a", "--", "touch", mark)
	require.Equal(t, exitSignal+int(syscall.SIGINT), code)
	require.Contains(t, stderr, "unlocker: interrupted: interrupt\n")
	require.NoFileExists(t, mark)
	require.Empty(t, e.Keys(""))
}

func TestLockPassesSignalsOn(t *testing.T) {
	e := newEtcd(t)
	// The grandchild would keep sleeping if only its parent was signaled.
	h := e.lock("a", "--", "sh", "-c", `trap 'echo usr1' USR1; sleep 1000 & trap 'wait; exit 9' TERM; echo "child $!"; while :; do wait; done`)
	h.await("child")
	h.signal(syscall.SIGUSR1)
	h.await("usr1")
	h.signal(syscall.SIGTERM)
	code, stderr := h.end()
	require.Equal(t, 9, code, stderr)
	require.Empty(t, stderr)
	requireDead(t, h.pids("child")...)
	require.Empty(t, e.Keys(""))
}

// A process that ends later than its shell works under the lock, too.
func TestLockIsHeldUntilTheGroupHasEnded(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("a", "--kill-after", "30s", "--", "sh", "-c",
		`trap "exit 3" TERM; sh -c 'trap "echo ending; `+waiting+`exit" TERM; echo ready; while :; do sleep 0.02; done' & wait`)
	h.await("ready")
	h.signal(syscall.SIGTERM)
	h.await("ending")
	require.NotEmpty(t, e.field("a", "uuid"))
	h.proceed()
	code, stderr := h.end()
	require.Equal(t, 3, code, stderr)
	require.Empty(t, e.Keys(""))
	// But what a command leaves behind when it ends by itself does not keep the lock.
	h = e.lock("a", "--", "sh", "-c", `sleep 1000 >&- 2>&- & echo "child $!"`)
	code, stderr = h.end()
	require.Zero(t, code, stderr)
	left := h.pids("child")[0]
	require.False(t, dead(left))
	require.NoError(t, syscall.Kill(left, syscall.SIGKILL))
}

func TestLockStopsTheCommandWhenForced(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("a", "--", "sh", "-c", "echo ready; sleep 1000")
	h.await("ready")
	e.remove("a")
	code, stderr := h.end()
	require.Equal(t, exitLost, code)
	require.Equal(t, "unlocker: the command was stopped: lock \"a\" is lost: removed by force\n", stderr)

	config := filepath.Join(t.TempDir(), "unlocker.yaml")
	require.NoError(t, os.WriteFile(config, []byte("audit_prefix: /elsewhere/"), 0o600))
	h = e.lock("a", "--config", config, "--", "sleep", "1000") // ends before the record is read
	etcdtest.Eventually(t, func() bool { return e.field("a", "uuid") != "" })
	code, _, stderr = e.call(nil, "unlock", "a", "--config", config, "--uuid", e.field("a", "uuid"), "--yes", "--reason", "OPS-1")
	require.Zero(t, code, stderr)
	code, stderr = h.end()
	require.Equal(t, exitLost, code)
	require.Regexp(t, `lock "a" is lost: removed by force by ".*" \(trigger "manual"\): "OPS-1" at `, stderr)

	// One that ignores TERM, with a grandchild that does.
	h = e.lock("a", "--kill-after", "10s", "--", "sh", "-c",
		`trap "echo no" TERM; echo "child $$"; sh -c 'trap "" TERM; echo "child $$"; while :; do sleep 1; done' & while :; do sleep 0.1; done`)
	etcdtest.Eventually(t, func() bool { return len(strings.Fields(h.out())) == 4 })
	began := time.Now()
	e.remove("a")
	e.Set("a", "uuid", "of another")
	code, stderr = h.end()
	require.Equal(t, exitLost, code, stderr)
	require.GreaterOrEqual(t, time.Since(began), 10*time.Second, "it has time to end")
	require.Contains(t, h.out(), "no\n", "it got TERM")
	requireDead(t, h.pids("child")...)
	require.Equal(t, "of another", e.field("a", "uuid"))
}

func TestLockStopsTheCommandAfterTheMaximum(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("a", "--max-hold", "10s", "--kill-after", "30s", "--", "sh", "-c", `trap "echo ending; `+waiting+`exit 0" TERM; echo ready; while :; do sleep 0.02; done`)
	h.await("ending")
	require.NotEmpty(t, e.field("a", "uuid"), "the lock is held until the command has ended")
	h.proceed()
	code, stderr := h.end()
	require.Equal(t, exitLost, code)
	require.Contains(t, stderr, "unlocker: the command was stopped: lock \"a\" was held for the maximum of 10s\n")
	require.Empty(t, e.Keys(""))
}

func TestLockSurvivesAShortOutage(t *testing.T) {
	e := newEtcd(t)
	p := e.Proxy(0)
	const patience = 24 * time.Second // it is given up after 21.6 s
	h := e.lockAt(p.Addr(), "a", "--patience", patience.String(), "--kill-after", "0", "--", "sh", "-c", "echo ready; "+waiting)
	h.await("ready")
	p.Blackhole()
	etcdtest.Eventually(t, func() bool { return time.Until(e.deadline("a")) < patience*2/3-time.Second }, "a renewal is due")
	first := e.deadline("a")
	require.NoError(t, p.Heal())
	etcdtest.Eventually(t, func() bool { return e.deadline("a").After(first) })
	h.proceed()
	code, stderr := h.end()
	require.Zero(t, code, stderr)
	require.Empty(t, e.Keys(""))
}

// The command is dead before the lock may be removed, even if it ignores TERM.
func TestLockGivesUpBeforeTheDeadline(t *testing.T) {
	e := newEtcd(t)
	p := e.Proxy(0)
	// It says by itself how long it lives: the test may look too late.
	h := e.lockAt(p.Addr(), "a", "--patience", "20s", "--", "sh", "-c",
		`trap "echo no" TERM; echo "child $$"; while :; do date +%s.%N >>alive; sleep 0.05; done`)
	h.await("child")
	p.Blackhole()
	deadline := e.deadline("a")
	requireDead(t, h.pids("child")...)
	alive := h.lastLine("alive")
	require.Less(t, alive, deadline)
	require.Greater(t, alive, deadline.Add(-10*time.Second), "it is not given up early")
	code, stderr := h.end()
	require.Equal(t, exitLost, code)
	require.Regexp(t, `unlocker: the command was stopped: lock "a" could not be renewed, and counts as lost from \S+Z on\n`, stderr)
	require.Contains(t, h.out(), "no\n")
}

// It is too late to say that the lock will expire.
func TestLockIsLostWhileItIsSuspended(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("a", "--patience", "3s", "--", "sh", "-c", "echo ready; sleep 1000")
	h.await("ready")
	h.signal(syscall.SIGSTOP)
	etcdtest.Eventually(t, func() bool { return time.Now().After(e.deadline("a")) })
	h.signal(syscall.SIGCONT)
	code, stderr := h.end()
	require.Equal(t, exitLost, code)
	require.Equal(t, "unlocker: the command was stopped: lock \"a\" is lost: not renewed in time\n", stderr)
}

func TestLockDiesWithItsCommand(t *testing.T) {
	e := newEtcd(t)
	h := e.lock("a", "--", "sh", "-c", `trap "" TERM HUP; echo "child $$"; while :; do sleep 0.05; done`)
	h.await("child")
	h.signal(syscall.SIGKILL)
	requireDead(t, h.pids("child")...)
	require.NotEmpty(t, e.field("a", "uuid"), "it expires")
}

// What was started by nohup is not ended by SIGHUP.
func TestLockIgnoresWhatItWasToldToIgnore(t *testing.T) {
	e := newEtcd(t)
	h := newHolding(t)
	h.cmd.Path, h.cmd.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", os.Args[0],
		"lock", "a", "--etcd-endpoints", e.Endpoints()[0], "--", "sh", "-c", "echo ready; " + waiting}
	h.start()
	h.await("ready")
	h.signal(syscall.SIGHUP)
	h.proceed()
	code, stderr := h.end()
	require.Zero(t, code, stderr)
}

func TestLockWithoutEtcd(t *testing.T) {
	e := newEtcd(t)
	code, stderr := e.lockAt("127.0.0.1:1", "a", "--etcd-dial-timeout", "5s", "--etcd-request-timeout", "5s", "--", "true").end()
	require.Equal(t, exitEtcd, code)
	require.Regexp(t, `^unlocker: etcd at 127.0.0.1:1: no connection: dial tcp 127.0.0.1:1: connect: connection refused\n$`, stderr)
	e.Guard("unlocker", "secret", "/other/")
	code, stderr = e.lock("a", "--etcd-username", "unlocker", "--etcd-password", "secret", "--", "true").end()
	require.Equal(t, exitEtcd, code)
	require.Contains(t, stderr, `permission denied: user "unlocker" needs readwrite on [/mutexes/, /mutexes0)`)
	for login, want := range map[string]string{
		"": "user name is empty: etcd has authentication on: set etcd.username",
		"--etcd-username=unlocker --etcd-password=wrong": `invalid user ID or password: etcd.username "unlocker" with the password of etcd.password`,
	} {
		code, stderr = e.lock(slices.Concat([]string{"a"}, strings.Fields(login), []string{"--", "true"})...).end()
		require.Equal(t, exitEtcd, code)
		require.Contains(t, stderr, want)
		require.Equal(t, 1, strings.Count(stderr, e.Endpoints()[0]), "%s", stderr)
	}
}

// The command has done its work, and its status counts.
func TestLockThatCannotBeReleased(t *testing.T) {
	e := newEtcd(t)
	p := e.Proxy(0)
	h := e.lockAt(p.Addr(), "a", "--", "sh", "-c", "echo child $$; "+waiting+"exit 4")
	h.await("child")
	p.Blackhole()
	h.proceed()
	requireDead(t, h.pids("child")...)
	etcdtest.Eventually(t, func() bool { // it would try again until the lock expires
		return errors.Is(h.cmd.Process.Signal(syscall.SIGTERM), os.ErrProcessDone)
	})
	code, stderr := h.end()
	require.Equal(t, 4, code)
	require.Contains(t, stderr, "unlocker: the lock could not be released, and stays until it expires: ")
}

func TestLockUsage(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, message := range map[string]string{
		"":                                "requires NAME -- COMMAND",
		"a":                               "requires NAME -- COMMAND",
		"a true":                          "requires NAME -- COMMAND",
		"a --":                            "requires NAME -- COMMAND",
		"-- true":                         "requires NAME -- COMMAND",
		"a b -- true":                     "requires NAME -- COMMAND",
		"a// -- true":                     "",
		"/mutexes/a -- true":              "is a key",
		"a --frob -- true":                "--frob",
		"a --alert-after 10 -- true":      "--alert-after",
		"a -n -w 5 -- true":               "give either --nonblock or --timeout",
		"a -w soon -- true":               "--timeout",
		"a --slots 0 -- true":             "--slots must be 1 to 1000",
		"a --slots 1001 -- true":          "--slots must be 1 to 1000",
		"a --slots many -- true":          "--slots",
		"a --at-least 25h -- true":        "--at-least must be at most --max-hold",
		"a --timeout -1s -- true":         "--timeout must not be negative",
		"a --conflict-exit-code 256 -- x": "--conflict-exit-code must be 0 to 255",
		"a --patience 1s -- true":         "--patience must be 3s to 720h0m0s",
		"a --max-hold 1000h -- true":      "--max-hold must be 1s to 720h0m0s",
		"a --kill-after 1m -- true":       "--kill-after must be at most a third of --patience",
		"a --max-hold 1m --alert-after 2m -- true": "--alert-after must be at most --max-hold",
		"a --etcd-endpoints , -- true":             "etcd.endpoints",
	} {
		code, stdout, stderr := call(t, t.Context(), append([]string{"lock"}, strings.Fields(args)...)...)
		require.Equal(t, exitLockUsage, code, "%s: %s", args, stderr)
		require.Empty(t, stdout)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.Contains(t, stderr, message)
	}
}
