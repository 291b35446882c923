package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

// frame returns the lines of the last whole frame that the terminal was sent.
func (s *shell) frame() []string {
	head, _, _ := cutLast(strings.ReplaceAll(s.screen(), "\r\r\n", "\r\n"), "\x1b[K\x1b[J\x1b[?2026l")
	_, frame, _ := cutLast(head, "\x1b[?2026h\x1b[H")
	return strings.Split(frame, "\x1b[K\r\n")
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// awaitFrame waits for a frame with a text, which begins a line if it begins with a line end.
func (s *shell) awaitFrame(want string) []string {
	s.t.Helper()
	etcdtest.Eventually(s.t, func() bool { return strings.Contains("\n"+strings.Join(s.frame(), "\n"), want) }, "%q", want)
	return s.frame()
}

func (s *shell) resize(columns, rows uint16) {
	s.t.Helper()
	raw, err := s.terminal.SyscallConn()
	require.NoError(s.t, err)
	require.NoError(s.t, raw.Control(func(fd uintptr) {
		require.NoError(s.t, unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
	}))
}

func TestWatchOnATerminal(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, 2*time.Hour)
	e.take("b", -time.Minute, 2*time.Hour)
	e.Set("evil\n\x1b[2J", "uuid", "u")
	s := e.newShell()
	s.resize(200, 10)
	const begin, end = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"

	s.enter("TERM=xterm $U list --watch --sort urgency\n", begin)
	frame := s.awaitFrame("\nb ")
	require.Regexp(t, `^\d\d:\d\d:\d\d UTC  3 locks under /mutexes/: 1 overdue, 1 undated, 1 held; by urgency$`, frame[0])
	require.Empty(t, frame[1])
	require.Regexp(t, `^NAME +STATE +HOSTNAME +OWNER +HELD +ALERT +UNLOCK +WAITERS$`, frame[2])
	require.Regexp(t, `^b +`+"\x1b\\[33moverdue\x1b\\[0m"+` +worker-1`, frame[3])
	require.Regexp(t, `^"evil\\n\\x1b\[2J" +\S+undated\S+ `, frame[4])
	require.Len(t, frame, 6)

	// Changes appear, and times advance without one.
	e.take("c", time.Hour, 2*time.Hour)
	s.awaitFrame("\nc ")
	_, _ = e.Client.Delete(t.Context(), "/mutexes/c/uuid")
	frame = s.awaitFrame("orphaned")
	held := regexp.MustCompile(`(?m)^a +\S+ +worker-1 +billing +(\S+)`).FindStringSubmatch(strings.Join(frame, "\n"))
	require.NotEmpty(t, held)
	etcdtest.Eventually(t, func() bool { return !strings.Contains("\n"+strings.Join(s.frame(), "\n"), held[0]) })

	// Only what fits is drawn, also after the size has changed, and no line is longer.
	s.resize(40, 5)
	frame = s.awaitFrame("\n… and 3 more")
	require.Len(t, frame, 5)
	for _, line := range frame {
		require.LessOrEqual(t, len([]rune(strings.NewReplacer("\x1b[33m", "", "\x1b[0m", "").Replace(line))), 40, line)
	}
	require.NotContains(t, strings.ReplaceAll(s.screen(), "\x1b[?2026l", ""), "\x1b[2J", "nothing is cleared, and nothing raw gets out")

	// Keys are not echoed, and the shell does not get them.
	_, err := s.terminal.WriteString("typed\n")
	require.NoError(t, err)
	s.resize(60, 6)
	s.awaitFrame("\n… and 2 more")
	require.NotContains(t, s.screen(), "typed")

	s.enter(controlZ, end)
	s.enter("echo sta\"\"tus-$?\n", "status-147")
	s.enter("fg\n", begin)
	s.awaitFrame("\nb ")
	s.enter(controlC, end)
	s.enter("echo sta\"\"tus-$?; stty -a\n", "status-0")
	etcdtest.Eventually(t, func() bool { return strings.Contains(s.screen(), " echo ") })
	require.NotContains(t, s.screen(), "typed: command not found")

	// An interactive shell would correct the modes.
	s.enter("TERM=xterm sh -c 'trap : INT; $U list -w; stty -a'\n", begin)
	s.enter(controlC, " echo ")
}

func TestKeysOfTheWatch(t *testing.T) {
	e := newEtcd(t)
	for _, name := range []string{"a", "b/ü", "c"} {
		e.take(name, time.Hour, 2*time.Hour)
	}
	s := e.newShell()
	s.resize(200, 10)
	press := func(keys, want string) string {
		t.Helper()
		_, err := s.terminal.WriteString(keys)
		require.NoError(t, err)
		return strings.Join(s.awaitFrame(want), "\n")
	}
	s.enter("NO_COLOR=1 TERM=xterm $U list -w\n", "\x1b[?1049h")
	s.awaitFrame("\na ")
	require.NotContains(t, press("\x1b[B", "by name, 1 above\n"), "\na ")
	require.NotContains(t, press("\x1b[B\x1b[B\x1b[B", "by name, 2 above\n"), "\nb/ü ", "the last one stays")
	press("\x1b[A", "\nb/ü ")
	require.Contains(t, press("\x1b[5~", "\na "), "by name\n")
	require.NotContains(t, press("/q\x7f/ü", "1 of 3 locks under /mutexes/: 1 held; by name\n\nNAME"), "\nc ")
	require.True(t, strings.HasPrefix(press("", "\nb/ü"), "//ü  "), "also where the line is cut off")
	press("\r\x1b", "\na ")
	require.Regexp(t, `\nNAME +STATE +HOSTNAME +OWNER +HELD +ALERT +UNLOCK +WAITERS\n`, press("", "\nc "))
	s.resize(70, 10)
	require.Regexp(t, `\nNAME +STATE +OWNER +HELD +ALERT +UNLOCK +WAITERS\n`, press("", "\nNAME   STATE   OWNER"))
	s.resize(40, 10)
	require.Regexp(t, `\nNAME +STATE +ALERT +UNLOCK\n`, press("", "\nNAME   STATE   ALERT"))
	s.enter("q", "\x1b[?1049l")
	s.enter("echo sta\"\"tus-$?\n", "status-0")
}

// Without a terminal that can draw, and with a pipe, there are lines.
func TestWatchOfADumbTerminal(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, 2*time.Hour)
	s := e.newShell()
	s.enter("$U list --watch\n", "a      held")
	require.NotContains(t, s.screen(), "\x1b")
	s.enter(controlC, "$ ")
	s.enter("NO_COLOR=1 TERM=xterm $U list\n", "a      held")
	require.NotContains(t, s.screen(), "\x1b")
	s.enter("TERM=xterm $U list\n", "a      \x1b[32mheld\x1b[0m")
	s.enter("TERM=xterm $U show a\n", "State:       \x1b[32mheld\x1b[0m")
	s.enter("NO_COLOR=1 TERM=xterm $U list -w\n", "\x1b[?1049h")
	s.awaitFrame("\na      held")
	s.enter(controlC, "\x1b[?1049l")
	s.enter("TERM=xterm $U list | cat\n", "a      held")
}

// A screen of a list that is not up to date says so, and goes on.
func TestWatchScreenThroughAnOutage(t *testing.T) {
	e := newEtcd(t)
	e.take("a", time.Hour, 2*time.Hour)
	proxy := e.Proxy(0)
	s := e.newShell()
	s.resize(200, 10)
	s.enter(fmt.Sprintf("TERM=xterm $U list --watch --etcd-endpoints %s %s\n", proxy.Addr(), silence), "\x1b[?1049h")
	s.awaitFrame("\na ")
	proxy.Cut()
	s.awaitFrame("as it was ")
	s.awaitFrame("watch failed; relisting: etcd at ")
	s.awaitFrame("\na ")
	e.take("b", time.Hour, 2*time.Hour)
	require.NoError(t, proxy.Heal())
	frame := s.awaitFrame("\nb ")
	require.Empty(t, frame[1])
	s.enter(controlC, "\x1b[?1049l")
}

// A list whose terminal is gone ends, also while it is suspended.
func TestWatchEndsWithItsTerminal(t *testing.T) {
	e := newEtcd(t)
	for _, suspended := range []bool{true, false} {
		s := e.newShell()
		s.enter("TERM=xterm $U list -w\n", "\x1b[?1049h")
		s.enter(controlZ, "\x1b[?1049l")
		s.enter("echo p\"\"id=$(jobs -p).\n", "pid=")
		printed := regexp.MustCompile(`pid=(\d+)\.`) // not its beginning
		etcdtest.Eventually(t, func() bool { return printed.MatchString(s.screen()) })
		pid, err := strconv.Atoi(printed.FindStringSubmatch(s.screen())[1])
		require.NoError(t, err)
		if !suspended {
			s.enter("fg\n", "\x1b[?1049h")
		}
		s.kill()
		etcdtest.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, "suspended: %v", suspended)
	}
}

// A person types as soon as the screen is back.
func TestKeysAfterTheScreenAreKept(t *testing.T) {
	master, slave := openTerminal(t)
	defer func() { _, _ = master.Close(), slave.Close() }()
	enter := func(keys string) {
		t.Helper()
		_, err := master.WriteString(keys)
		require.NoError(t, err)
	}
	arrived := func() bool {
		n, err := unix.IoctlGetInt(int(slave.Fd()), unix.TIOCINQ)
		return err == nil && n > 0
	}
	buffer := make([]byte, 4096)
	for range 100 {
		screen, err := terminal.OpenScreen(slave)
		require.NoError(t, err)
		enter("dropped\n")
		etcdtest.Eventually(t, arrived)
		closed := make(chan error)
		go func() { closed <- screen.Close() }()
		for seen := ""; !strings.Contains(seen, "\x1b[?1049l"); {
			n, err := master.Read(buffer)
			require.NoError(t, err)
			seen += string(buffer[:n])
		}
		enter("kept\n")
		require.NoError(t, <-closed)
		etcdtest.Eventually(t, arrived, "the keys were dropped")
		n, err := slave.Read(buffer)
		require.NoError(t, err)
		require.Equal(t, "kept\n", string(buffer[:n]))
	}
}
