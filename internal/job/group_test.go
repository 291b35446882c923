package job

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A command whose status something else has taken counts as killed, and is not waited for forever.
func TestCommandThatIsNoChildAnyMoreCountsAsKilled(t *testing.T) {
	t.Parallel()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", "exit 0"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{Setpgid: true}})
	require.NoError(t, err)
	g := &group{pid: p.Pid, states: make(chan syscall.WaitStatus)}
	_, err = p.Wait()
	require.NoError(t, err)
	go g.observe()
	ended := make(chan int, 1)
	go func() { ended <- g.wait(t.Context(), time.Second) }()
	select {
	case status := <-ended:
		require.Equal(t, 128+int(syscall.SIGKILL), status)
	case <-time.After(10 * time.Second):
		require.Fail(t, "still waiting")
	}
}

// A question is answered with what the command does, without its arguments.
func TestStatusOfTheCommand(t *testing.T) {
	t.Parallel()
	j := &job{Options: Options{Command: []string{"x", "--password=secret"}}, path: "/bin/x"}
	require.Equal(t, "/bin/x is not running", j.status())
	j.child.Store(&child{os.Getpid(), time.Now().Add(-3 * time.Minute)})
	require.Regexp(t, `^/bin/x, pid \d+: running for 3m\ds, \S+s of CPU time, state [A-Z]$`, j.status())
	j.child.Store(&child{1 << 30, time.Now()})
	require.Regexp(t, `^/bin/x, pid 1073741824: running for 0s$`, j.status())
}
