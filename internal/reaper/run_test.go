package reaper_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/scan/table"
)

const prefix = "/mutexes/"

// source gives the reaper what a table has, as the wiring does.
type source struct {
	*table.Table
	gone chan []reaper.Gone
}

func (s *source) Take(ctx context.Context, n int) ([]reaper.Candidate, reaper.Pressure, error) {
	batch, err := s.Table.Take(ctx, n)
	all := make([]reaper.Candidate, len(batch.Locks))
	for i, l := range batch.Locks {
		all[i] = reaper.Candidate{Lock: l.Lock, Sight: l.Sight, At: time.Now(), Since: l.Since, Attempts: l.Attempts}
	}
	return all, reaper.Pressure(batch.Pressure), err
}

func (s *source) Pressure(ctx context.Context) (reaper.Pressure, error) {
	p, err := s.Table.Pressure(ctx)
	return reaper.Pressure(p), err
}

func (s *source) Gone() <-chan []reaper.Gone { return s.gone }

func (s *source) run(ctx context.Context) {
	for {
		select {
		case batch := <-s.Table.Gone():
			all := make([]reaper.Gone, len(batch))
			for i, g := range batch {
				all[i] = reaper.Gone(g)
			}
			select {
			case s.gone <- all:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

type observer struct {
	mu sync.Mutex
	n  int
}

func (o *observer) Observe(float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
}

func (o *observer) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

// replica is the chain from scan to reaper, running.
type replica struct {
	*reaper.Reaper
	table *table.Table
	late  *observer
	// stop ends the reaper first, and returns how long that took.
	stop func() time.Duration
}

func startReplica(t *testing.T, cli *clientv3.Client, edits ...func(*reaper.Options)) *replica {
	t.Helper()
	layout, err := lock.NewLayout(prefix)
	require.NoError(t, err)
	rules := reaper.Rules{Mode: reaper.Enforce, Grace: 2 * time.Second, Tolerance: 2 * time.Second, Settle: time.Second, StandbyDelay: 5 * time.Second}
	tab, err := table.New(table.Options{Due: rules.DueIn, Lead: reaper.Lead, Window: time.Minute, Tolerance: rules.Tolerance, OrphanGrace: time.Second, HoldDuration: &observer{}})
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	scanner, err := scan.New(scan.Options{Client: cli, Layout: layout, Table: tab, Freshness: 10 * time.Second, RequestTimeout: 2 * time.Second, Logger: quiet})
	require.NoError(t, err)
	src := &source{Table: tab, gone: make(chan []reaper.Gone)}
	r := &replica{table: tab, late: &observer{}}
	o := reaper.Options{
		KV: cli, Layout: layout, Source: src, Rules: rules, BatchSize: 16, Concurrency: 2,
		RequestTimeout: 2 * time.Second, Retention: time.Hour, Delay: r.late, Logger: quiet,
		Holds: reaper.HoldRules{Freshness: time.Minute}, Leader: func() bool { return true },
		Credit: func(time.Time) time.Duration { return 0 }, Signals: func() reaper.Signals {
			s := scanner.Status()
			return reaper.Signals{ListedAt: s.Listed, History: s.History, Connected: true, Sign: time.Now(), Probed: true}
		},
	}
	for _, edit := range edits {
		edit(&o)
	}
	r.Reaper, err = reaper.New(o)
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	reaping, endReaping := context.WithCancel(ctx)
	var rest sync.WaitGroup
	rest.Go(func() { _ = tab.Run(ctx) })
	rest.Go(func() { _ = scanner.Run(ctx) })
	rest.Go(func() { src.run(ctx) })
	ended := make(chan error, 1)
	go func() { ended <- r.Run(reaping) }()
	r.stop = sync.OnceValue(func() time.Duration {
		start := time.Now()
		endReaping()
		err := <-ended
		took := time.Since(start)
		cancel()
		rest.Wait()
		require.NoError(t, err)
		return took
	})
	t.Cleanup(func() { r.stop() })
	return r
}

func cluster(t *testing.T) (*localetcd.Cluster, *clientv3.Client) {
	t.Helper()
	c := localetcd.ForTest(t, localetcd.Options{})
	cli, err := c.Client()
	require.NoError(t, err)
	return c, cli
}

func key(name, field string) string { return prefix + name + "/" + field }

func stamp(at time.Time) string { return lock.TimestampOf(at).String() }

// acquire takes a lock as a client does.
func acquire(t *testing.T, cli *clientv3.Client, name string, until time.Time) {
	t.Helper()
	_, err := cli.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key(name, "uuid")), "=", 0)).Then(
		clientv3.OpPut(key(name, "uuid"), "uuid of "+name), clientv3.OpPut(key(name, "hostname"), "host"),
		clientv3.OpPut(key(name, "locked_at"), stamp(time.Now())), clientv3.OpPut(key(name, "auto_unlock_at"), stamp(until))).Commit()
	require.NoError(t, err)
}

func count(t *testing.T, cli *clientv3.Client) int64 {
	t.Helper()
	resp, err := cli.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	return resp.Count
}

func lockNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("lock/%04d", i)
	}
	return all
}

// Owners renew exactly when their locks become due. Those whose renewal was
// answered with success keep their locks.
func TestS1_RenewalsAtTheLastMomentAreNotLost(t *testing.T) {
	_, cli := cluster(t)
	replica := startReplica(t, cli, func(o *reaper.Options) { o.Concurrency, o.BatchSize = 4, 4 })
	until := time.Now().Add(-500 * time.Millisecond)
	all := lockNames(400)
	for _, name := range all {
		acquire(t, cli, name, until)
	}
	due := until.Add(2 * time.Second)
	var mu sync.Mutex
	renewed := make(map[string]bool)
	next := make(chan string)
	var owners sync.WaitGroup
	for range 16 {
		owners.Go(func() {
			for name := range next {
				resp, err := cli.Txn(t.Context()).If(clientv3.Compare(clientv3.Value(key(name, "uuid")), "=", "uuid of "+name)).
					Then(clientv3.OpPut(key(name, "auto_unlock_at"), stamp(time.Now().Add(time.Hour)))).Commit()
				if err == nil && resp.Succeeded {
					mu.Lock()
					renewed[name] = true
					mu.Unlock()
				}
			}
		})
	}
	<-time.After(time.Until(due) - 5*time.Millisecond)
	for i := range all {
		next <- all[len(all)-1-i]
	}
	close(next)
	owners.Wait()
	require.Eventually(t, func() bool { return count(t, cli) == int64(4*len(renewed)) }, 10*time.Second, 20*time.Millisecond)
	for name := range renewed {
		resp, err := cli.Get(t.Context(), key(name, ""), clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 4, name)
	}
	t.Logf("%d of %d renewed, conflicts %d", len(renewed), len(all), replica.Stats().Conflicts)
	require.NotEmpty(t, renewed)
	require.EqualValues(t, len(all)-len(renewed), replica.Stats().Removed[reaper.Expiry])
}

func TestS7_TwoReplicasCountEachRemovalOnce(t *testing.T) {
	_, cli := cluster(t)
	all := lockNames(600)
	due := time.Now().Add(-time.Second)
	a, b := startReplica(t, cli), startReplica(t, cli)
	for _, name := range all {
		acquire(t, cli, name, due)
	}
	require.Eventually(t, func() bool { return count(t, cli) == 0 }, 15*time.Second, 20*time.Millisecond)
	sum := func(f func(reaper.Stats) uint64) uint64 { return f(a.Stats()) + f(b.Stats()) }
	require.Eventually(t, func() bool {
		return sum(func(s reaper.Stats) uint64 { return s.Removed[reaper.Expiry] }) == uint64(len(all)) &&
			sum(func(s reaper.Stats) uint64 { return s.ReleasedBySelf }) == uint64(len(all))
	}, 5*time.Second, 10*time.Millisecond, "%v %v", a.Stats(), b.Stats())
	for _, r := range []*replica{a, b} {
		require.EqualValues(t, r.Stats().Removed[reaper.Expiry], r.late.count())
		require.Len(t, r.Ledger().Recent(1_000), r.late.count())
	}
	require.Zero(t, sum(func(s reaper.Stats) uint64 { return s.Failures[reaper.ReasonAmbiguous] }))
	t.Logf("conflicts: %d", sum(func(s reaper.Stats) uint64 { return s.Conflicts }))
}

func TestLocksAndOrphansGoWhileOthersStay(t *testing.T) {
	_, cli := cluster(t)
	replica := startReplica(t, cli)
	acquire(t, cli, "dead", time.Now().Add(-time.Hour))
	acquire(t, cli, "alive", time.Now().Add(time.Hour))
	for k, v := range map[string]string{"orphan/alert_at": "1700000000", "undated/uuid": "u", "malformed/uuid": "u", "malformed/auto_unlock_at": "soon"} {
		_, err := cli.Put(t.Context(), prefix+k, v)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return count(t, cli) == 7 }, 10*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool { return replica.late.count() == 2 }, 5*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 1, replica.Stats().ReleasedBySelf, "an orphan was no lock")
	require.EqualValues(t, 1, replica.Stats().Removed[reaper.Expiry])
	require.EqualValues(t, 1, replica.Stats().Removed[reaper.Orphan])
}

func TestModeOffTakesNothing(t *testing.T) {
	_, cli := cluster(t)
	src := &counting{}
	replica := startReplica(t, cli, func(o *reaper.Options) {
		o.Rules.Mode = reaper.Off
		src.Source = o.Source
		o.Source = src
	})
	acquire(t, cli, "dead", time.Now().Add(-time.Hour))
	require.Never(t, func() bool { // its last call may outlive the test, and fail
		resp, err := cli.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && resp.Count != 4
	}, 500*time.Millisecond, 50*time.Millisecond)
	require.Less(t, replica.stop(), time.Second)
	require.Zero(t, src.taken)
}

type counting struct {
	reaper.Source
	taken int
}

func (c *counting) Take(ctx context.Context, n int) ([]reaper.Candidate, reaper.Pressure, error) {
	c.taken++
	return c.Source.Take(ctx, n)
}

func TestEtcdDownWhileLocksAreDue(t *testing.T) {
	c, cli := cluster(t)
	all := lockNames(100)
	due := time.Now().Add(time.Second)
	replica := startReplica(t, cli, func(o *reaper.Options) { o.RequestTimeout = 200 * time.Millisecond })
	for _, name := range all {
		acquire(t, cli, name, due)
	}
	require.Eventually(t, func() bool {
		s, err := replica.table.Stats(context.Background(), 0)
		return err == nil && s.Locks[lock.Held]+s.Locks[lock.Expired] == len(all)
	}, 2*time.Second, 5*time.Millisecond)
	require.EqualValues(t, 400, count(t, cli))
	c.Kill(0)
	failed := func() (n uint64) {
		for _, f := range replica.Stats().Failures {
			n += f
		}
		return n
	}
	require.Eventually(t, func() bool { return failed() >= 48 }, 20*time.Second, 10*time.Millisecond)
	before, start := failed(), time.Now()
	require.Never(t, func() bool { return failed() > before+16*12 }, 2*time.Second, 50*time.Millisecond, "a hot loop")
	require.Zero(t, replica.Stats().Removed[reaper.Expiry])
	require.NoError(t, c.Restart(t.Context()))
	require.Eventually(t, func() bool { return count(t, cli) == 0 }, 30*time.Second, 50*time.Millisecond)
	t.Logf("%d failures, down for %s", failed(), time.Since(start))
	stats := replica.Stats()
	require.LessOrEqual(t, stats.Removed[reaper.Expiry], uint64(len(all)))
	require.GreaterOrEqual(t, stats.Removed[reaper.Expiry]+stats.Failures[reaper.ReasonAmbiguous], uint64(len(all)))
}

// A source and an etcd that hang: Run ends all the same.
func TestRunEndsInTimeWhileARequestHangs(t *testing.T) {
	c, direct := cluster(t)
	proxy, err := localetcd.NewProxy(c.Addr(0))
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	cli, err := c.Client(func(cfg *clientv3.Config) { cfg.Endpoints = []string{proxy.Addr()} })
	require.NoError(t, err)
	entered := make(chan struct{}, 1)
	replica := startReplica(t, cli, func(o *reaper.Options) {
		o.RequestTimeout, o.Concurrency = time.Minute, 1
		o.KV = &hanging{KV: o.KV, hang: func() { proxy.HoldReplies(); entered <- struct{}{} }}
	})
	acquire(t, direct, "dead", time.Now().Add(-time.Hour))
	<-entered
	require.Eventually(t, func() bool { return count(t, direct) == 0 }, 10*time.Second, 10*time.Millisecond)
	require.Less(t, replica.stop(), 3*time.Second)
	require.EqualValues(t, 1, replica.Stats().Failures[reaper.ReasonAmbiguous], "what was under way is reported")
}

// hanging calls hang before the second transaction, which is the first that
// deletes.
type hanging struct {
	clientv3.KV
	hang func()
	n    int
}

func (h *hanging) Txn(ctx context.Context) clientv3.Txn {
	if h.n++; h.n == 2 {
		h.hang()
	}
	return h.KV.Txn(ctx)
}

// A transaction that is answered soon after the end was asked for is reported.
func TestATransactionUnderWayAtTheEndIsReported(t *testing.T) {
	_, cli := cluster(t)
	entered, goOn := make(chan struct{}), make(chan struct{})
	replica := startReplica(t, cli, func(o *reaper.Options) {
		o.Concurrency = 1
		o.KV = &hanging{KV: o.KV, hang: func() { close(entered); <-goOn }}
	})
	acquire(t, cli, "dead", time.Now().Add(-time.Hour))
	<-entered
	time.AfterFunc(200*time.Millisecond, func() { close(goOn) })
	require.Less(t, replica.stop(), 2*time.Second)
	require.EqualValues(t, 1, replica.Stats().Removed[reaper.Expiry])
	require.Len(t, replica.Ledger().Recent(1), 1)
}
