package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

const asDemo = "UNLOCKER_DEMO_TEST_MAIN"

// TestMain is the demo itself in the processes that the tests start.
func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	soon = 30 * time.Second
	poll = 20 * time.Millisecond
	// promised is how long Ctrl-C may take.
	promised = 5 * time.Second
)

func TestDemoTellsItsStory(t *testing.T) {
	t.Parallel()
	var out, errs screen
	start := time.Now()
	code := run(t.Context(), []string{"--once", "--verbose"}, &out, &errs)
	t.Logf("\n%s", &out)
	require.Equal(t, exitOK, code, errs.String())
	require.Less(t, time.Since(start), soon)
	require.NoDirExists(t, filepath.Dir(out.found(t, `tail -f (\S+)`)))

	var at int
	for _, text := range []string{
		"took billing/invoices", "took reports/monthly", "took deploy/api", "deploy-4   wants deploy/api too",
		"deploy/api is OVERDUE", "held by deploy-3 of deploy", "deploy/api has EXPIRED",
		"REMOVES deploy/api BY FORCE", "roll out api 2.7", "cast.go:", "(*cast).die", "expiry, due at",
		"all of it was seen", "held 2, expired 1, malformed 1", "1 by force", "the temporary directory is gone",
	} {
		i := strings.Index(out.String()[at:], text)
		require.GreaterOrEqual(t, i, 0, "%q is missing, or too early", text)
		at += i
	}
	for f := range numFacts {
		require.Contains(t, out.String(), "✓ "+f.String())
	}
	for _, text := range []string{
		"nothing is removed by force yet", "unlocker_reaper_hold: none any more", "unlocker_host_clock_offset_seconds of backup-6 is -36",
		"backup/nightly is 59 minutes past", "reports/monthly is OVERDUE", "reports/monthly is no longer overdue", "deploy-4   has deploy/api at last",
		"is done: unlocked billing/invoices after 13 renewals",
	} {
		require.Contains(t, out.String(), text)
	}
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
	}
	require.NotContains(t, out.String(), "\x1b", "colour where there is no terminal")
	require.Contains(t, errs.String(), `"msg":"lock removed"`, "--verbose")
}

// The commands that the demo offers at its end do what it says.
func TestDemoGoesOn(t *testing.T) {
	t.Parallel()
	d := startDemo(t)
	d.out.await(t, "All stays up until Ctrl-C", "docs/metrics.md")
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{d.out.found(t, `etcdctl --endpoints=(\S+)`)}, Logger: zap.NewNop(),
	})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	now := seconds(time.Now())
	for _, op := range []clientv3.Op{
		clientv3.OpTxn(nil, []clientv3.Op{
			clientv3.OpPut("/mutexes/try/uuid", "mine"),
			clientv3.OpPut("/mutexes/try/locked_at", now),
			clientv3.OpPut("/mutexes/try/auto_unlock_at", now),
			clientv3.OpPut("/mutexes/try/purpose", "\x1b[2J\u202e"),
		}, nil),
		clientv3.OpDelete("/mutexes/cache/warmup/locked_at"),
		clientv3.OpDelete("/mutexes/cache/warmup/alert_at"),
		clientv3.OpPut("/mutexes/cache/warmup/auto_unlock_at", seconds(time.Now().Add(-5*time.Minute))),
		clientv3.OpDelete("/mutexes/deploy/api/uuid"),
	} {
		_, err := client.Do(t.Context(), op)
		require.NoError(t, err)
	}
	d.out.await(t, "try was taken by (not said)", "REMOVES try BY FORCE", "REMOVES cache/warmup BY FORCE", `\u001b[2J\u202e`,
		"removed try: 4 keys", "deploy-4   stops, as it must")
	require.NotContains(t, d.out.String(), "should not have happened")
	require.NotContains(t, d.out.String(), "\x1b")
	require.NoError(t, d.end(t, syscall.SIGINT))
	d.out.await(t, "the temporary directory is gone")
	require.Empty(t, d.errs.String())
}

func TestInterruptLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		signal syscall.Signal
		after  string
		args   []string
		code   int
	}{
		"at once":       {syscall.SIGINT, "unlocker demo", nil, exitOK},
		"in the middle": {syscall.SIGINT, "took cache/warmup", nil, exitOK},
		"terminated":    {syscall.SIGTERM, "took deploy/api", nil, exitOK},
		"terminal gone": {syscall.SIGHUP, "took deploy/api", nil, exitOK},
		// The story was not seen: that is no success for a machine.
		"once": {syscall.SIGTERM, "took deploy/api", []string{"--once"}, exitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, c.args...)
			d.out.await(t, c.after)
			err := d.end(t, c.signal)
			if c.code == exitOK {
				require.NoError(t, err, d.errs.String())
				return
			}
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, c.code, exit.ExitCode())
		})
	}
}

func TestInterruptLeavesNoGoroutine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := goleak.IgnoreCurrent()
	var out screen
	code := make(chan int)
	go func() { code <- run(ctx, nil, &out, io.Discard) }()
	out.await(t, "took deploy/api")
	cancel()
	select {
	case c := <-code:
		require.Equal(t, exitOK, c)
	case <-time.After(promised):
		t.Fatal("still there")
	}
	goleak.VerifyNone(t, before)
	require.NoDirExists(t, filepath.Dir(out.found(t, `tail -f (\S+)`)))
}

// `unlocker-demo | head -1`, and a reader that is there but reads nothing.
func TestReaderIsGone(t *testing.T) {
	t.Parallel()
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		r, w := newPipe(t)
		d := newProcess(t)
		d.cmd.Stdout = w
		d.start(t)
		require.NoError(t, w.Close())
		_, err := io.ReadFull(r, make([]byte, 10))
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, d.wait(t, soon))
	})
	t.Run("asleep", func(t *testing.T) {
		t.Parallel()
		slow := &sleeper{asleep: make(chan struct{}), wake: make(chan struct{})}
		defer close(slow.wake)
		ctx, cancel := context.WithCancel(t.Context())
		code := make(chan int)
		go func() { code <- run(ctx, nil, slow, io.Discard) }()
		select {
		case <-slow.asleep:
		case <-time.After(soon):
			t.Fatal("nothing was written")
		}
		cancel()
		select {
		case c := <-code:
			require.Equal(t, exitOK, c)
		case <-time.After(promised):
			t.Fatal("still there")
		}
	})
}

// sleeper takes the addresses and then nothing more.
type sleeper struct {
	once         sync.Once
	asleep, wake chan struct{}
}

func (s *sleeper) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("took")) {
		s.once.Do(func() { close(s.asleep) })
		<-s.wake
	}
	return len(b), nil
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--nonsense"}, {"nonsense"}} {
		var out, errs screen
		require.Equal(t, exitUsage, run(t.Context(), args, &out, &errs))
		require.Empty(t, out.String())
		require.Contains(t, errs.String(), "nonsense")
	}
}
