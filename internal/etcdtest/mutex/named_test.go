package mutex_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/app"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/mutex"
)

const (
	patience = 10 * time.Second // for the holder to renew on a busy machine
	grace    = 2 * time.Second  // the daemon's default
)

// startDaemon runs the daemon, and returns its log once it removes locks.
func startDaemon(t *testing.T, e *etcdtest.Etcd) *etcdtest.Log {
	t.Helper()
	c := config.Default()
	c.Etcd.Endpoints = e.Endpoints()
	c.Ops.Listen, c.Web.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Reaper.Settle = 100 * time.Millisecond
	log := &etcdtest.Log{}
	daemon, err := app.New(c, log.Logger())
	require.NoError(t, err)
	daemon.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), etcdtest.Soon)
		defer cancel()
		require.NoError(t, daemon.Stop(ctx))
	})
	// The first lock that it removes shows that no hold is in force.
	e.Put(e.Lock("probe", time.Now(), time.Now())...)
	etcdtest.Eventually(t, func() bool { return len(e.Keys("probe/")) == 0 })
	return log
}

// process is another process that holds a lock: this test binary, see helper.
type process struct {
	t *testing.T
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func startProcess(t *testing.T, e *etcdtest.Etcd) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "MUTEX_TEST_ENDPOINT="+e.Endpoints()[0])
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p := &process{t, cmd, in, bufio.NewScanner(out)}
	require.Equal(t, "locked", p.line())
	return p
}

func (p *process) line() string {
	p.t.Helper()
	require.True(p.t, p.out.Scan())
	return p.out.Text()
}

func (p *process) say(lines ...string) {
	p.t.Helper()
	_, err := io.WriteString(p.in, strings.Join(lines, "\n")+"\n")
	require.NoError(p.t, err)
}

// helper holds a lock, and does a step of its work for each line of its input.
func helper(endpoint string) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	c, err := mutex.New(etcd, mutex.KeepAlive(time.Hour), mutex.Patience(patience))
	if err != nil {
		return err
	}
	l, err := c.Lock(context.Background(), "a")
	if err != nil {
		return err
	}
	ctx := l.Context(context.Background())
	fmt.Println("locked")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch {
		case in.Text() == "write": // a zombie that does not look
			resp, err := etcd.Txn(context.Background()).If(l.Cmp()).Then(clientv3.OpPut("/resource", "zombie")).Commit()
			fmt.Println("written:", err == nil && resp.Succeeded)
		case ctx.Err() != nil:
			fmt.Println("stopped:", errors.Is(context.Cause(ctx), mutex.ErrLost))
		default:
			fmt.Println("worked")
		}
	}
	return nil
}

// TestStopTheWorld stops a process for longer than its deadline. When it goes on its next
// step does not happen, and the resource refuses the write of a process that does not look.
func TestStopTheWorld(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	startDaemon(t, e)
	p := startProcess(t, e)
	p.say("step", "write")
	require.Equal(t, []string{"worked", "written: true"}, []string{p.line(), p.line()})
	got := waiting(t.Context(), newClient(t, e.Client), "a")
	stillWaits(t, got, patience+time.Second)
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	r := <-got
	require.NoError(t, r.err)
	p.say("step", "write")
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	require.Equal(t, []string{"stopped: true", "written: false"}, []string{p.line(), p.line()})
	require.NoError(t, r.l.Held())
	require.NoError(t, r.l.Unlock(t.Context()))
}

// TestFailover elects by a lock: who has it leads. The leader is killed, and the next one
// leads. How soon is measured by internal/sim, under virtual time.
func TestFailover(t *testing.T) {
	t.Parallel()
	e := etcdtest.Start(t, localetcd.Options{})
	startDaemon(t, e)
	leader := startProcess(t, e)
	got := waiting(t.Context(), newClient(t, e.Client), "a")
	stillWaits(t, got, patience+grace)
	require.NoError(t, leader.Process.Kill())
	r := <-got
	require.NoError(t, r.err)
	require.NoError(t, r.l.Unlock(t.Context()))
}

// TestRedeployment restarts half of the owners at once, without a release. Each has its lock
// again at once, and the others keep theirs.
func TestRedeployment(t *testing.T) {
	t.Parallel()
	const (
		owners   = 40
		patience = 30 * time.Second // for the owners to renew on a busy machine
	)
	e := etcdtest.Start(t, localetcd.Options{})
	log := startDaemon(t, e)
	start := func(i int) (*mutex.Lock, *clientv3.Client) {
		etcd := e.Connect()
		c := newClient(t, etcd, mutex.Identity(fmt.Sprint("owner-", i)), mutex.KeepAlive(time.Hour), mutex.Patience(patience))
		l, err := c.TryLock(t.Context(), fmt.Sprint("shard-", i))
		require.NoError(t, err)
		return l, etcd
	}
	var locks []*mutex.Lock
	var crash []*clientv3.Client
	for i := range owners {
		l, etcd := start(i)
		locks, crash = append(locks, l), append(crash, etcd)
	}
	for i := range owners / 2 {
		require.NoError(t, crash[i].Close())
	}
	for i := range owners / 2 {
		locks[i], _ = start(i)
	}
	// No lock outlives this without a renewal, and what the crashed owners have left would be removed.
	<-time.After(patience + grace + time.Second)
	for _, l := range locks {
		require.NoError(t, l.Held())
		require.NoError(t, l.Unlock(t.Context()))
	}
	require.Len(t, log.Lines(api.LogRemoved), 1, "the probe")
}
