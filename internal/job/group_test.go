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
