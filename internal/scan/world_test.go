package scan

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	// freshness and answer are longer than a busy machine needs to show something.
	freshness = 6 * time.Second
	answer    = 10 * time.Second
	tolerance = 2 * time.Second
	// timeout is that of requests under virtual time, and of those that are to fail.
	timeout = 2 * time.Second
)

type ignored struct{}

func (ignored) Observe(float64) {}

var layout = func() protocol.Layout {
	l, err := protocol.NewLayout("/mutexes/")
	if err != nil {
		panic(err)
	}
	return l
}()

// world is a real etcd and a scanner.
type world struct {
	t    *testing.T
	etcd *etcdtest.Etcd
	*Scanner
}

// newTable returns a table that runs until the test ends.
func newTable(t testing.TB) *table.Table {
	t.Helper()
	tab, err := table.New(table.Options{
		Rules:        verdict.Rules{Reaper: config.Reaper{Mode: verdict.Off, ClockTolerance: tolerance, OrphanGrace: time.Minute}},
		Allowance:    func(int64, time.Time, bool) (deadline, patience time.Duration) { return 0, 0 },
		Raw:          table.Raw(),
		HoldDuration: ignored{}, RenewalMargin: ignored{},
	})
	require.NoError(t, err)
	background(t, tab.Run)
	return tab
}

// background runs f until the test ends.
func background(t testing.TB, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	stopped := false
	stop = func() error {
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(etcdtest.Soon):
			return errors.New("still running after its end")
		}
	}
	t.Cleanup(func() {
		if !stopped {
			require.NoError(t, stop())
		}
	})
	return stop
}

// client returns one of the given address, which is closed with the test.
func client(t testing.TB, addr string, edits ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{addr}, DialTimeout: etcdtest.Soon, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	c, err := clientv3.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newScanner(t testing.TB, c *clientv3.Client, edits ...func(*Options)) *Scanner {
	t.Helper()
	o := Options{
		Client: c, Layout: layout, Table: newTable(t), Freshness: freshness, Tolerance: tolerance,
		RequestTimeout: answer, Explain: func(err error) error { return err }, Logger: slog.New(slog.DiscardHandler),
	}
	for _, edit := range edits {
		edit(&o)
	}
	s, err := New(o)
	require.NoError(t, err)
	return s
}

// start runs a scanner against a single member, through a proxy if any.
func start(t *testing.T, etcd *etcdtest.Etcd, through *localetcd.Proxy, edits ...func(*Options)) *world {
	t.Helper()
	addr := etcd.Addr(0)
	if through != nil {
		addr = through.Addr()
	}
	w := &world{t, etcd, newScanner(t, client(t, addr), edits...)}
	background(t, w.Run)
	return w
}

// idle is a world whose scanner does not run.
func idle(t *testing.T) *world {
	t.Helper()
	etcd := single(t)
	return &world{t, etcd, newScanner(t, etcd.Client)}
}

func single(t testing.TB) *etcdtest.Etcd {
	t.Helper()
	return etcdtest.Start(t, localetcd.Options{})
}

func (w *world) eventually(f func() bool, what string) {
	w.t.Helper()
	etcdtest.Eventually(w.t, f, what)
}

func (w *world) connected() {
	w.t.Helper()
	w.eventually(func() bool { return w.Status().Connected }, "connected")
}

// restarted waits until the watch has failed for a reason.
func (w *world) restarted(r Reason) {
	w.t.Helper()
	w.eventually(func() bool { return w.Status().Restarts[r] > 0 }, string(r))
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), etcdtest.Soon)
	w.t.Cleanup(cancel)
	return ctx
}

// fieldsOf are the puts that take a lock.
func (w *world) fieldsOf(name string) []clientv3.Op {
	now := time.Now()
	return w.etcd.Lock(name, now.Add(time.Minute), now.Add(time.Hour))
}

func (w *world) acquire(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.etcd.Put(w.fieldsOf(name)...)
	}
}

func (w *world) release(name string) {
	w.t.Helper()
	from, end := layout.Range(name)
	_, err := w.etcd.Client.Delete(w.ctx(), from, clientv3.WithRange(end))
	require.NoError(w.t, err)
}

// known returns the table's locks by name.
func (w *world) known() map[string]protocol.Lock {
	page, err := w.Table.Page(w.ctx(), api.Query{Limit: 1 << 20})
	require.NoError(w.t, err)
	require.False(w.t, page.More)
	locks := make(map[string]protocol.Lock)
	for _, it := range page.Items {
		locks[it.Name] = it.Lock
	}
	return locks
}

func (w *world) stats() table.Stats {
	s, err := w.Table.Stats(w.ctx(), 1)
	require.NoError(w.t, err)
	return s
}

// inLine waits until the table shows what etcd holds.
func (w *world) inLine() {
	w.t.Helper()
	w.eventually(func() bool {
		want := make(map[string]protocol.Lock)
		l := lister{kv: w.etcd.Client.KV, layout: layout, timeout: etcdtest.Soon, emit: func(locks []protocol.Lock) error {
			for _, l := range locks {
				want[l.Name] = l
			}
			return nil
		}}
		if _, err := l.run(w.ctx(), 0); err != nil {
			return false
		}
		got := w.known()
		for name, l := range want {
			g := got[name]
			if g.Token != l.Token || g.Keys != l.Keys || g.UUID() != l.UUID() ||
				g.AutoUnlockText() != l.AutoUnlockText() || g.AlertAt() != l.AlertAt() || g.AliveAt() != l.AliveAt() {
				return false
			}
		}
		return len(got) == len(want)
	}, "table in line with etcd")
}
