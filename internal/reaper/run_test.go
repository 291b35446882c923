package reaper_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/lock"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/internal/reaper"
	"github.com/etcd-unlocker/unlocker/internal/scan"
	"github.com/etcd-unlocker/unlocker/internal/table"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

const prefix = "/mutexes/"

// replica is the chain from scan to reaper, running.
type replica struct {
	*reaper.Reaper
	table *table.Table
	delay *delays
}

func startReplica(t *testing.T, client *clientv3.Client, edits ...func(*reaper.Options)) *replica {
	t.Helper()
	layout, err := lock.NewLayout(prefix)
	require.NoError(t, err)
	rules := verdict.Rules{Mode: verdict.Enforce, Grace: grace, Tolerance: grace, Settle: time.Second, StandbyDelay: 5 * time.Second}
	r := &replica{delay: &delays{}}
	r.table, err = table.New(table.Options{DueIn: rules.DueIn, Lead: reaper.Lead, Window: time.Minute, Tolerance: grace,
		OrphanGrace: time.Second, HoldDuration: &delays{}})
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	scanner, err := scan.New(scan.Options{Client: client, Layout: layout, Table: r.table, Freshness: 10 * time.Second,
		RequestTimeout: 2 * time.Second, Explain: func(err error) error { return err }, Logger: quiet})
	require.NoError(t, err)
	o := reaper.Options{
		Store:  lockstore.Store{KV: client, Layout: layout, RequestTimeout: 2 * time.Second},
		Source: r.table, Rules: rules, BatchSize: 16, Concurrency: 2, Retention: time.Hour, Delay: r.delay, Logger: quiet,
		Holds: verdict.HoldRules{Freshness: time.Minute}, Leader: func() bool { return true },
		Allowance: func(time.Time) time.Duration { return 0 },
		Signals: func() verdict.Signals {
			s := scanner.Status()
			return verdict.Signals{ListedAt: s.Listed, History: s.History, Connected: true, LastSign: time.Now(), Probed: true}
		},
	}
	for _, edit := range edits {
		edit(&o)
	}
	r.Reaper, err = reaper.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	var failed error
	parts.Go(func() { failed = r.Run(ctx) })
	parts.Go(func() { _ = r.table.Run(ctx) })
	parts.Go(func() { _ = scanner.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		parts.Wait()
		require.NoError(t, failed)
	})
	return r
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, soon, 10*time.Millisecond)
}

func key(name, field string) string { return prefix + name + "/" + field }

// acquire takes locks as clients do.
func acquire(t *testing.T, client *clientv3.Client, until time.Time, names ...string) {
	t.Helper()
	for _, name := range names {
		_, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(key(name, "uuid")), "=", 0)).Then(
			clientv3.OpPut(key(name, "uuid"), "uuid of "+name), clientv3.OpPut(key(name, "hostname"), "host"),
			clientv3.OpPut(key(name, "locked_at"), stamp(time.Now())), clientv3.OpPut(key(name, "auto_unlock_at"), stamp(until))).Commit()
		require.NoError(t, err)
	}
}

func count(t *testing.T, client *clientv3.Client) int {
	t.Helper()
	resp, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	require.NoError(t, err)
	return int(resp.Count)
}

// Holders renew exactly when their locks become due. Those whose renewal was answered
// with success keep their locks.
func TestS1_RenewalsAtTheLastMomentAreNotLost(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	r := startReplica(t, client, func(o *reaper.Options) { o.Concurrency, o.BatchSize = 4, 4 })
	until := time.Now().Add(time.Second)
	all := names("lock/%04d", 400)
	acquire(t, client, until, all...)
	var renewed sync.Map
	next := make(chan string)
	var holders sync.WaitGroup
	for range 16 {
		holders.Go(func() {
			for name := range next {
				resp, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.Value(key(name, "uuid")), "=", "uuid of "+name)).
					Then(clientv3.OpPut(key(name, "auto_unlock_at"), stamp(time.Now().Add(time.Hour)))).Commit()
				if err == nil && resp.Succeeded {
					renewed.Store(name, true)
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
	n := 0
	renewed.Range(func(any, any) bool { n++; return true })
	t.Logf("%d of %d renewed, conflicts %d", n, len(all), r.Stats().Conflicts)
	require.NotZero(t, n)
	eventually(t, func() bool { return count(t, client) == 4*n })
	renewed.Range(func(name, _ any) bool {
		resp, err := client.Get(t.Context(), key(name.(string), ""), clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 4, name)
		return true
	})
	eventually(t, func() bool { return r.Stats().Removed[verdict.Expiry] == uint64(len(all)-n) })
}

func TestS7_TwoReplicasCountEachRemovalOnce(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	all := names("lock/%04d", 600)
	a, b := startReplica(t, client), startReplica(t, client)
	acquire(t, client, time.Now().Add(-time.Second), all...)
	eventually(t, func() bool { return count(t, client) == 0 })
	sum := func(f func(reaper.Stats) uint64) int { return int(f(a.Stats()) + f(b.Stats())) }
	eventually(t, func() bool {
		return sum(func(s reaper.Stats) uint64 { return s.Removed[verdict.Expiry] }) == len(all) &&
			sum(func(s reaper.Stats) uint64 { return s.ReleasedBySelf }) == len(all) &&
			len(a.delay.all())+len(b.delay.all()) == len(all)
	})
	for _, r := range []*replica{a, b} {
		require.EqualValues(t, r.Stats().Removed[verdict.Expiry], len(r.delay.all()))
		require.Len(t, r.Ledger().Recent(1_000), len(r.delay.all()))
	}
	require.Zero(t, sum(func(s reaper.Stats) uint64 { return s.Failures[lockstore.ReasonAmbiguous] }))
	t.Logf("conflicts: %d", sum(func(s reaper.Stats) uint64 { return s.Conflicts }))
}

func TestLocksAndOrphansGoWhileOthersStay(t *testing.T) {
	_, client := newEtcd(t, localetcd.Options{})
	r := startReplica(t, client)
	acquire(t, client, time.Now().Add(-time.Hour), "dead")
	acquire(t, client, time.Now().Add(time.Hour), "alive")
	for k, v := range map[string]string{"orphan/alert_at": expiry, "undated/uuid": "u", "malformed/uuid": "u", "malformed/auto_unlock_at": "soon"} {
		_, err := client.Put(t.Context(), prefix+k, v)
		require.NoError(t, err)
	}
	eventually(t, func() bool { return count(t, client) == 7 })
	eventually(t, func() bool { return len(r.delay.all()) == 2 })
	require.EqualValues(t, 1, r.Stats().ReleasedBySelf, "an orphan was not held")
	require.EqualValues(t, 1, r.Stats().Removed[verdict.Expiry])
	require.EqualValues(t, 1, r.Stats().Removed[verdict.Orphan])
}

func TestModeOffTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newHarness(t, nil, func(o *reaper.Options) { o.Rules.Mode = verdict.Off })
		h.expired("dead")
		h.give(h.due("dead"))
		<-time.After(time.Hour)
		require.Zero(t, h.source.waiting())
		require.Len(t, h.source.due, 1)
		require.Len(t, h.keys(), 5)
	})
}

func TestEtcdDownWhileLocksAreDue(t *testing.T) {
	const workers, perBatch, perSecond = 2, 16, 10 // each worker reads and sends
	cluster, client := newEtcd(t, localetcd.Options{})
	all := names("lock/%04d", 100)
	var overdue atomic.Bool
	overdue.Store(true)
	r := startReplica(t, client, func(o *reaper.Options) {
		o.Store.RequestTimeout, o.Concurrency, o.BatchSize = 200*time.Millisecond, workers, perBatch
		signals := o.Signals
		o.Signals = func() verdict.Signals {
			s := signals()
			s.Overdue = overdue.Load()
			return s
		}
	})
	acquire(t, client, time.Now().Add(-grace), all...)
	eventually(t, func() bool {
		p, err := r.table.Pressure(t.Context())
		return err == nil && p.Backlog == len(all)
	})
	require.Equal(t, 400, count(t, client))
	cluster.Kill(0)
	overdue.Store(false)
	failed := func() (n int) {
		for _, f := range r.Stats().Failures {
			n += int(f)
		}
		return n
	}
	start := time.Now()
	eventually(t, func() bool { return failed() >= 9*perBatch })
	limit := 2 * workers * perBatch * (perSecond*time.Since(start).Seconds() + 2)
	require.Less(t, float64(failed()), limit, "a hot loop")
	require.Zero(t, r.Stats().Removed[verdict.Expiry])
	require.NoError(t, cluster.Restart(t.Context()))
	eventually(t, func() bool {
		stats := r.Stats()
		return count(t, client) == 0 && int(stats.Removed[verdict.Expiry]+stats.Failures[lockstore.ReasonAmbiguous]) >= len(all)
	})
	t.Logf("%d failures, down for %s", failed(), time.Since(start))
	require.LessOrEqual(t, int(r.Stats().Removed[verdict.Expiry]), len(all))
}
