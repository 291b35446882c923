package bench

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/etcd-unlocker/unlocker/internal/history"
	"github.com/etcd-unlocker/unlocker/internal/lockstore"
	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

// BenchmarkHistory reads histories from an etcd of 200,000 revisions, while another client writes.
func BenchmarkHistory(b *testing.B) {
	etcd := startEtcd(b)
	client := etcd.etcd()
	layout, err := protocol.NewLayout("/mutexes/")
	require.NoError(b, err)
	const each = 100_000
	fill(b, client, each)
	for _, tc := range []struct {
		name, lock string
		periods    int
	}{
		{"held and renewed 100,000 times", "renewed", 20},
		{"held once, 200,000 revisions ago", "old", 20},
		{"taken 10,000 times, the last 20", "busy", 20},
		{"taken 10,000 times, the last 1,000", "busy", 1000},
	} {
		b.Run(tc.name, func(b *testing.B) {
			counted := &counter{KV: client.KV}
			reader := history.Reader{
				Store:       lockstore.Store{KV: counted, Layout: layout, RequestTimeout: time.Minute},
				AuditPrefix: "/audit/", ExplainAudit: func(err error) error { return err },
			}
			worst := disturbed(b, client)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			cpu := cpuTime(b, etcd.pid)
			for range b.N {
				p, err := reader.Read(b.Context(), tc.lock, history.Bounds{Periods: tc.periods, Renewals: 20, Time: time.Hour})
				require.NoError(b, err)
				require.NotEmpty(b, p.Periods)
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64((cpuTime(b, etcd.pid)-cpu).Milliseconds())/float64(b.N), "ms-CPU-of-etcd/op")
			b.ReportMetric(float64(counted.requests)/float64(b.N), "requests/op")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/(1<<20), "MiB-allocated/op")
			b.ReportMetric(float64(worst().Microseconds())/1000, "ms-worst-put")
		})
	}
}

// fill writes as many renewals of one lock as revisions of others.
func fill(b *testing.B, client *clientv3.Client, each int) {
	put := func(name string, fields ...string) (ops []clientv3.Op) {
		for _, f := range fields {
			ops = append(ops, clientv3.OpPut("/mutexes/"+name+"/"+f, fmt.Sprint(time.Now().Unix())))
		}
		return ops
	}
	commit := func(ops []clientv3.Op) error {
		_, err := client.Txn(b.Context()).Then(ops...).Commit()
		return err
	}
	take := []string{"uuid", "hostname", "locked_at", "alert_at", "auto_unlock_at"}
	require.NoError(b, commit(put("old", take...)))
	_, err := client.Delete(b.Context(), "/mutexes/old/", clientv3.WithPrefix())
	require.NoError(b, err)
	require.NoError(b, commit(put("renewed", take...)))
	var all errgroup.Group
	all.SetLimit(64)
	all.Go(func() error { // a tenth of the revisions of others, one after the other
		for range each / 10 {
			if err := commit(put("busy", take...)); err != nil {
				return err
			}
			if _, err := client.Delete(b.Context(), "/mutexes/busy/", clientv3.WithPrefix()); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range each {
		all.Go(func() error { return commit(put("renewed", "alive_at", "alert_at", "auto_unlock_at")) })
		if i%10 >= 2 {
			all.Go(func() error {
				return commit(put(fmt.Sprintf("other-%d", i%2000), "alive_at", "alert_at", "auto_unlock_at"))
			})
		}
	}
	require.NoError(b, all.Wait())
}

// counter counts the transactions.
type counter struct {
	clientv3.KV
	requests int
}

func (c *counter) Txn(ctx context.Context) clientv3.Txn {
	c.requests++
	return c.KV.Txn(ctx)
}

// disturbed writes every 5 ms until the function that it returns is called, which returns the longest time
// that a write took.
func disturbed(b *testing.B, client *clientv3.Client) func() time.Duration {
	done, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		worst, next := time.Duration(0), time.NewTicker(5*time.Millisecond)
		defer next.Stop()
		for {
			select {
			case <-done:
				longest <- worst
				return
			case <-next.C:
			}
			began := time.Now()
			_, err := client.Put(b.Context(), "/other", "x")
			if err != nil {
				b.Error(err)
			}
			worst = max(worst, time.Since(began))
		}
	}()
	return func() time.Duration {
		close(done)
		return <-longest
	}
}
