package reaper_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// The metrics show what holds as soon as the daemon runs.
func TestS3_HoldsAreKnownFromTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) {
			o.Signals = func() verdict.Signals { return verdict.Signals{} }
		})
		h.start()
		synctest.Wait()
		require.NotEmpty(t, h.holding())
	})
}

// newReplica returns the chain from scan to reaper, running on the locks below a
// prefix that all replicas share.
func newReplica(t *testing.T, client *clientv3.Client, edits ...func(*reaper.Options)) (*harness, *table.Table) {
	t.Helper()
	layout, err := protocol.NewLayout("/mutexes/")
	require.NoError(t, err)
	var locks *table.Table
	var scanner *scan.Scanner
	h := newHarness(t, client, append(edits, func(o *reaper.Options) {
		o.Store.Layout, o.Rules.Settle, o.Rules.OrphanGrace = layout, 0, time.Second
		start := time.Now()
		locks, err = table.New(table.Options{Raw: func() time.Duration { return time.Since(start) }, Rules: o.Rules, Allowance: o.Probe.Allowance, Lead: o.Probe.Lead,
			HoldDuration: &delays{}, RenewalMargin: &delays{}})
		require.NoError(t, err)
		scanner, err = scan.New(scan.Options{Client: client, Layout: layout, Table: locks, Freshness: 10 * time.Second, Tolerance: grace,
			RequestTimeout: 2 * time.Second, Explain: func(err error) error { return err }, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		o.Source = locks
	})...)
	h.direct.Layout = layout
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = locks.Run(ctx) })
	parts.Go(func() { _ = scanner.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		parts.Wait()
	})
	h.start()
	return h, locks
}

// acquire takes locks of four keys as clients do.
func (h *harness) acquire(until time.Time, names ...string) {
	h.t.Helper()
	var ops []clientv3.Op
	for _, name := range names {
		for field, value := range map[string]string{"uuid": "u-" + name, "hostname": "host", "locked_at": stamp(time.Now()), "auto_unlock_at": stamp(until)} {
			ops = append(ops, clientv3.OpPut(h.direct.Layout.Key(name, field), value))
		}
	}
	h.commit(ops...) // 25 locks at a time
}

// Holders renew exactly when their locks become due. Those whose renewal was answered
// with success keep their locks.
func TestS1_RenewalsAtTheLastMomentAreNotLost(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	h, _ := newReplica(t, client, func(o *reaper.Options) { o.Rules.Concurrency, o.Rules.BatchSize = 4, 4 })
	until := time.Now().Add(4 * time.Second) // longer than it takes to acquire all
	all := names("lock/%04d", 400)
	h.acquire(until, all...)
	key := h.direct.Layout.Key
	renewed := make(chan string, len(all))
	next := make(chan string)
	var holders sync.WaitGroup
	for range 16 {
		holders.Go(func() {
			for name := range next {
				resp, err := client.Txn(h.ctx).If(clientv3.Compare(clientv3.Value(key(name, "uuid")), "=", "u-"+name)).
					Then(clientv3.OpPut(key(name, "auto_unlock_at"), stamp(time.Now().Add(time.Hour)))).Commit()
				if err == nil && resp.Succeeded {
					renewed <- name
				}
			}
		})
	}
	<-time.After(time.Until(until.Add(grace)) - 5*time.Millisecond)
	for i := range all {
		next <- all[len(all)-1-i]
	}
	close(next)
	holders.Wait()
	n := len(renewed)
	t.Logf("%d of %d renewed, conflicts %d", n, len(all), h.Stats().Conflicts)
	require.NotZero(t, n)
	h.await(func() bool { return len(h.keys()) == 4*n && h.removed() == len(all)-n })
	for range n {
		name := <-renewed
		require.Len(t, h.get(name+"/"), 4, name)
	}
}

func TestS7_TwoReplicasCountEachRemovalOnce(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	const n = 600
	a, _ := newReplica(t, client)
	b, _ := newReplica(t, client)
	a.acquire(time.Now().Add(-time.Second), names("lock/%04d", n)...)
	sum := func(f func(*harness) int) int { return f(a) + f(b) }
	a.await(func() bool {
		return len(a.keys()) == 0 && sum((*harness).removed) == n && sum(func(h *harness) int { return len(h.delay.all()) }) == n
	})
	require.Equal(t, n, sum(func(h *harness) int { return int(h.Stats().ReleasedBySelf) }))
	for _, h := range []*harness{a, b} {
		require.Len(t, h.delay.all(), h.removed())
		require.Len(t, h.Ledger().Recent(1_000), h.removed())
		require.Zero(t, h.Stats().Failures[lockstore.ReasonAmbiguous])
	}
	t.Logf("conflicts: %d", sum(func(h *harness) int { return int(h.Stats().Conflicts) }))
}

func TestLocksAndOrphansGoWhileOthersStay(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	h, _ := newReplica(t, client)
	h.acquire(time.Now().Add(-time.Hour), "dead")
	h.acquire(time.Now().Add(time.Hour), "alive")
	h.set("orphan", "alert_at", expiry)
	h.set("undated", "uuid", "u")
	h.set("malformed", "uuid", "u", "auto_unlock_at", "soon")
	h.await(func() bool { return len(h.keys()) == 7 && len(h.delay.all()) == 2 })
	require.EqualValues(t, 1, h.Stats().ReleasedBySelf, "an orphan was not held")
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Expiry])
	require.EqualValues(t, 1, h.Stats().Removed[verdict.Orphan])
}

func TestModeOffTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rules.Mode = verdict.Off })
		h.expired("dead")
		h.give(h.due("dead"))
		<-time.After(time.Hour)
		require.False(t, h.source.waits.Load())
		require.Len(t, h.source.due, 1)
		require.Len(t, h.keys(), 5)
	})
}

// stopped is a table that has stopped.
type stopped struct{ *source }

func (stopped) Due() <-chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}

func (stopped) Take(context.Context, int) ([]table.View, error) { return nil, table.ErrStopped }

func TestTheReaperEndsWithTheTable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Source = stopped{newSource()} })
		require.ErrorIs(t, h.Run(t.Context()), table.ErrStopped)
	})
}

func TestEtcdDownWhileLocksAreDue(t *testing.T) {
	const n, workers, perBatch, perSecond = 100, 2, 16, 10 // each worker reads and sends
	cluster, client := newEtcd(t, localetcd.Options{})
	var overdue atomic.Bool
	overdue.Store(true)
	h, locks := newReplica(t, client, func(o *reaper.Options) {
		o.Store.RequestTimeout, o.Rules.Concurrency, o.Rules.BatchSize, o.Signals = 200*time.Millisecond, workers, perBatch, flagged(&overdue)
	})
	h.acquire(time.Now().Add(-time.Second), names("lock/%04d", n)...)
	h.await(func() bool {
		s, err := locks.Stats(h.ctx, 0)
		return err == nil && s.Backlog == n
	})
	require.Len(t, h.keys(), 4*n)
	cluster.Kill(0)
	start := time.Now()
	overdue.Store(false)
	failed := func() (sum int) {
		for _, n := range h.failures() {
			sum += int(n)
		}
		return sum
	}
	h.await(func() bool { return failed() >= 2*perBatch })
	failures := failed()
	limit := 2 * workers * perBatch * (perSecond*time.Since(start).Seconds() + 2)
	require.Less(t, float64(failures), limit, "a hot loop")
	require.Zero(t, h.removed())
	require.NoError(t, cluster.Restart(h.ctx))
	h.await(func() bool { return len(h.keys()) == 0 })
	h.await(func() bool { return h.removed()+int(h.failures()[lockstore.ReasonAmbiguous]) >= n })
	t.Logf("%d failures, down for %s", failed(), time.Since(start))
	require.LessOrEqual(t, h.removed(), n)
}
