package bench

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
)

const removals = 20_000

// BenchmarkRemoval removes 20,000 locks of five keys that are due at once in four ways, each
// on a new etcd: by the expiry of leases, by one range delete, and by the daemon with two
// configurations. It reports the rates and their ratios, and the effect of the daemon on
// another client: the p99 of locking and unlocking while nothing is due and during the
// removals.
func BenchmarkRemoval(b *testing.B) {
	for range b.N {
		leases, bare := leaseExpiry(b, newEtcd(b).Client), rangeDelete(b, newEtcd(b))
		b.ReportMetric(leases, "leases/s")
		b.ReportMetric(bare, "bare-range/s")
		for _, profile := range []struct {
			name            string
			batch, inFlight int
		}{{"default", config.Default().Reaper.BatchSize, config.Default().Reaper.Concurrency}, {"fast", 124, 2}} {
			rate, idle, busy := removeByDaemon(b, profile.batch, profile.inFlight)
			b.ReportMetric(rate, profile.name+"/s")
			b.ReportMetric(rate/leases, profile.name+"-x-leases")
			b.ReportMetric(rate/bare, profile.name+"-x-bare")
			b.ReportMetric(float64(idle.Microseconds())/1000, profile.name+"-idle-p99-ms")
			b.ReportMetric(float64(busy)/float64(idle), profile.name+"-p99-x-idle")
		}
	}
}

// removeByDaemon makes the daemon remove the locks.
func removeByDaemon(b *testing.B, batch, inFlight int) (rate float64, idle, busy time.Duration) {
	e := newEtcd(b)
	_, stop := startDaemon(b, e, func(c *config.Config) {
		c.Reaper.BatchSize, c.Reaper.Concurrency = batch, inFlight
	})
	defer stop()
	finish := deletions(b, e.Client, removals)
	unlock := time.Now().Add(10 * time.Second).Truncate(time.Second)
	putLocks(e, removals, unlock, unlock)
	measure := measureClient(b, e.Connect())
	time.Sleep(3 * time.Second) //nolint:forbidigo // the duration of the measurement
	idle = quantile(measure(), .99)
	time.Sleep(time.Until(unlock.Add(config.Default().Reaper.Grace))) //nolint:forbidigo // until the locks are due
	measure = measureClient(b, e.Connect())
	first, last := finish()
	return removals / last.Sub(first).Seconds(), idle, quantile(measure(), .99)
}

// leaseExpiry attaches the keys of each lock to its own lease, and returns how many locks
// per second etcd expires.
func leaseExpiry(b *testing.B, client *clientv3.Client) float64 {
	finish := deletions(b, client, removals)
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(64)
	for i := range removals {
		g.Go(func() error {
			lease, err := client.Grant(ctx, 15)
			if err != nil {
				return err
			}
			_, err = client.Txn(ctx).Then(lockOps(name(i), time.Now(), time.Now(), clientv3.WithLease(lease.ID))...).Commit()
			return err
		})
	}
	require.NoError(b, g.Wait())
	first, last := finish()
	return removals / last.Sub(first).Seconds()
}

// rangeDelete deletes all locks by one range delete, the fastest way, and returns their
// number per second.
func rangeDelete(b *testing.B, e *etcdtest.Etcd) float64 {
	putLocks(e, removals, time.Now(), time.Now())
	finish := deletions(b, e.Client, removals)
	start := time.Now()
	_, err := e.Client.Delete(b.Context(), prefix+"bench/", clientv3.WithPrefix())
	require.NoError(b, err)
	_, last := finish()
	return removals / last.Sub(start).Seconds()
}

const idleTime = 100 * time.Millisecond

// BenchmarkOneDue removes single locks on an idle system. It compares the time from due until
// the deletion is seen with the duration of the same transaction sent directly.
func BenchmarkOneDue(b *testing.B) {
	const rounds = 50
	for range b.N {
		e := newEtcd(b)
		_, stop := startDaemon(b, e, nil)
		var bare, delays []time.Duration
		for i := range rounds {
			bare = append(bare, bareDelete(b, e.Client, name(i)))
			due := time.Now().Add(idleTime)
			delays = append(delays, dueDelete(b, e.Client, name(i), due))
		}
		stop()
		txn, delay := quantile(bare, .5), quantile(delays, .5)
		b.ReportMetric(float64(txn.Microseconds())/1000, "bare-ms")
		b.ReportMetric(float64(delay.Microseconds())/1000, "due-to-gone-ms")
		b.ReportMetric(float64(delay)/float64(txn), "x-bare")
	}
}

// bareDelete sends the transaction of the daemon directly on an idle system, and returns how
// long it takes until a watcher sees the deletion.
func bareDelete(b *testing.B, client *clientv3.Client, name string) time.Duration {
	ops := lockOps(name, time.Now().Add(time.Hour), time.Now().Add(time.Hour))
	put, err := client.Txn(b.Context()).Then(ops...).Commit()
	require.NoError(b, err)
	finish := deletions(b, client, 1)
	time.Sleep(idleTime) //nolint:forbidigo // until the system is idle
	from, end := prefix+name+"/", prefix+name+"0"
	start := time.Now()
	_, err = client.Txn(b.Context()).If(
		clientv3.Compare(clientv3.Value(from+"uuid"), "=", string(ops[4].ValueBytes())),
		clientv3.Compare(clientv3.Value(from+"auto_unlock_at"), "=", string(ops[1].ValueBytes())),
		clientv3.Compare(clientv3.ModRevision(from), "<", put.Header.Revision+1).WithRange(end),
	).Then(clientv3.OpDelete(from, clientv3.WithRange(end))).Commit()
	require.NoError(b, err)
	gone, _ := finish()
	return gone.Sub(start)
}

// dueDelete returns how long after due the deletion by the daemon is seen.
func dueDelete(b *testing.B, client *clientv3.Client, name string, due time.Time) time.Duration {
	deadline := due.Add(-config.Default().Reaper.Grace)
	finish := deletions(b, client, 1)
	ops := lockOps(name, deadline, deadline)
	ops[1] = clientv3.OpPut(prefix+name+"/auto_unlock_at", strconv.FormatFloat(float64(deadline.UnixNano())/1e9, 'f', 6, 64))
	_, err := client.Txn(context.WithoutCancel(b.Context())).Then(ops...).Commit()
	require.NoError(b, err)
	gone, _ := finish()
	return gone.Sub(due)
}
