package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/api"
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

// patience is for a busy machine, twice as long as the story may take.
const patience = 2 * storyTimeout

func TestStoryComesTrue(t *testing.T) {
	t.Parallel()
	var out, errs screen
	code := run(t.Context(), []string{"--once", "--verbose"}, &out, &errs)
	t.Logf("\n%s", &out)
	require.Equal(t, exitOK, code, errs.String())
	require.NoFileExists(t, out.find(t, `tail -f (\S+)`))
	at := 0
	for _, text := range []string{
		"locked billing/invoices", "locked reports/monthly", "locked deploy/api", "waits for deploy/api",
		"deploy-3   is killed", "deploy/api is overdue: held by deploy-3", "deploy/api has expired",
		"REMOVES deploy/api", "deploy-3", "deploy api 2.7", "workers.go:", "due", "is done: unlocked billing/invoices",
	} {
		i := strings.Index(out.String()[at:], text)
		require.GreaterOrEqual(t, i, 0, "%q is missing, or too early", text)
		at += i
	}
	for _, check := range checks() {
		require.Contains(t, out.String(), "✓ "+check)
	}
	fitsTheTerminal(t, out.String())
	require.NotContains(t, out.String(), "\x1b", "colour where there is no terminal")
	require.Contains(t, errs.String(), `"msg":"`+api.LogRemoved+`"`, "--verbose")
}

// fitsTheTerminal holds all that the demo prints, commands included, to 80 columns.
func fitsTheTerminal(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	event := func(kind mvccpb.Event_EventType, field, value string) *clientv3.Event {
		return &clientv3.Event{Type: kind, Kv: &mvccpb.KeyValue{Key: []byte(prefix + field), Value: []byte(value), ModRevision: 7}}
	}
	for name, c := range map[string]struct {
		observe func(*report)
		want    error
	}{
		"all checks": {func(*report) {}, nil},
		"one missed": {func(r *report) { delete(r.seen, apiCounted) }, errNotTrue},
		"overdue":    {func(r *report) { r.scraped(`unlocker_lock_info{hostname="billing-1",lock="billing/invoices"} 1`) }, errNotTrue},
		"removed too early": {func(r *report) {
			r.seen[api.LogRemoving+deployAPI] = true
			r.changed(event(mvccpb.PUT, deployAPI+"/auto_unlock_at", (&worker{}).timeIn(time.Hour)))
			r.changed(event(mvccpb.DELETE, deployAPI+"/auto_unlock_at", ""))
		}, errNotTrue},
		"removed from its holder": {func(r *report) {
			r.seen[api.LogRemoving+nightly] = true
			r.changed(event(mvccpb.PUT, nightly+"/uuid", "u"))
			r.changed(event(mvccpb.DELETE, nightly+"/uuid", ""))
		}, errNotTrue},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReport(options{once: true, out: io.Discard}, func() {})
			for _, check := range checks() {
				r.first(check)
			}
			c.observe(r)
			r.finish(nil)
			require.Equal(t, c.want, r.outcome)
		})
	}
}

// The commands that the demo offers at its end do what it says, on any values.
func TestDemoKeepsRunning(t *testing.T) {
	t.Parallel()
	d := startDemo(t, nil)
	d.out.await(t, "Everything keeps running until Ctrl-C", "docs/metrics.md")
	fitsTheTerminal(t, strings.ReplaceAll(d.out.String(), d.tmp, "/tmp"))
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{d.out.find(t, `--etcd-endpoints (\S+)`)}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	now := time.Now().Unix()
	for _, op := range []clientv3.Op{
		clientv3.OpTxn(nil, []clientv3.Op{
			clientv3.OpPut(prefix+"try/purpose", "\x1b[2J\u202e"),
			clientv3.OpPut(prefix+"try/uuid", "me"),
			clientv3.OpPut(prefix+"try/locked_at", strconv.FormatInt(now, 10)),
			clientv3.OpPut(prefix+"try/auto_unlock_at", strconv.FormatInt(now+1, 10)),
		}, nil),
		clientv3.OpDelete(prefix+"cache/warmup/", clientv3.WithPrefix()),
		clientv3.OpDelete(prefix + "deploy/api/uuid"),
	} {
		_, err := client.Do(t.Context(), op)
		require.NoError(t, err)
	}
	d.out.await(t, "REMOVES try", `\x1b[2J\u202e`, "removed try: 4 keys", "all 9 keys of cache/warmup", "no longer holds deploy/api")
	require.NotContains(t, d.out.String(), "should not have happened")
	require.NotContains(t, d.out.String(), "\x1b")
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, d.wait(t))
	d.out.await(t, "no files are left")
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
		"in the middle": {syscall.SIGINT, "locked cache/warmup", nil, exitOK},
		"terminated":    {syscall.SIGTERM, "locked deploy/api", nil, exitOK},
		"terminal gone": {syscall.SIGHUP, "locked deploy/api", nil, exitOK},
		// The story was not seen to its end: a failure for --once.
		"once": {syscall.SIGTERM, "locked deploy/api", []string{"--once"}, exitFailure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, nil, c.args...)
			d.out.await(t, c.after)
			require.NoError(t, d.cmd.Process.Signal(c.signal))
			_ = d.wait(t)
			require.Equal(t, c.code, d.cmd.ProcessState.ExitCode(), d.errs.String())
		})
	}
}

// `unlocker-demo | head -1`
func TestReaderIsGone(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	d := startDemo(t, w)
	require.NoError(t, w.Close())
	_, err = io.ReadFull(r, make([]byte, 10))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, d.wait(t))
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--nonsense"}, {"nonsense"}} {
		var out, errs screen
		require.Equal(t, exitUsage, run(t.Context(), args, &out, &errs))
		require.Empty(t, out.String())
		require.Contains(t, errs.String(), "nonsense")
	}
	var out, errs screen
	require.Equal(t, exitOK, run(t.Context(), []string{"--help"}, &out, &errs))
	require.Regexp(t, `(?s)--once.*-v, --verbose`, out.String())
}

// screen keeps what is written to it.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) await(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.Eventually(t, func() bool { return strings.Contains(s.String(), text) },
			patience, 20*time.Millisecond, "%q is missing in:\n%s", text, s)
	}
}

// find returns what the pattern's group matched.
func (s *screen) find(t *testing.T, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(s.String())
	require.NotNil(t, m, "%s in:\n%s", pattern, s)
	return m[1]
}

// process is a demo in a process and with a temporary directory of its own.
type process struct {
	cmd       *exec.Cmd
	tmp       string
	out, errs screen
	done      chan struct{}
	err       error
}

// startDemo starts a demo that writes to out, or to a screen.
func startDemo(t *testing.T, out *os.File, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	d := &process{cmd: exec.Command(self, args...), tmp: t.TempDir(), done: make(chan struct{})}
	d.cmd.Env = append(os.Environ(), asDemo+"=1", "TMPDIR="+d.tmp)
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.errs
	if out != nil {
		d.cmd.Stdout = out
	}
	require.NoError(t, d.cmd.Start())
	go func() {
		defer close(d.done)
		d.err = d.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.done
	})
	return d
}

// wait waits for the demo's end, after which no file may be left.
func (d *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case <-d.done:
	case <-time.After(patience):
		t.Fatalf("still running:\n%s", &d.out)
	}
	left, err := os.ReadDir(d.tmp)
	require.NoError(t, err)
	require.Empty(t, left)
	return d.err
}
