package scan

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/mutex/protocol"
)

const (
	benchLocks = 200_000
	benchKeys  = 5 * benchLocks
)

// BenchmarkList1M compares listing 1,000,000 keys into a table with reading
// them and doing nothing.
func BenchmarkList1M(b *testing.B) {
	if testing.Short() {
		b.Skip("loads a million keys")
	}
	cluster := single(b)
	c := client(b, cluster.Addr(0))
	load(b, c)
	bare(b, c) // warms what is shared
	var base, own time.Duration
	var bytes uint64
	for b.Loop() {
		base += bare(b, c)
		s := newScanner(b, c, func(o *Options) { o.RequestTimeout = time.Minute })
		before := liveHeap()
		start := time.Now()
		head, err := s.checkHistory(b.Context())
		require.NoError(b, err)
		require.NoError(b, s.Table.Begin(b.Context(), head.Revision, false))
		require.NoError(b, s.list(b.Context(), head.Revision, false))
		own += time.Since(start)
		bytes += liveHeap() - before
		stats, err := s.Table.Stats(b.Context(), 0)
		require.NoError(b, err)
		require.Equal(b, benchLocks, stats.Locks[protocol.Held])
	}
	b.ReportMetric(own.Seconds()/base.Seconds(), "x-bare")
	b.ReportMetric(float64(bytes)/float64(b.N)/benchLocks, "B/lock")
	b.ReportMetric(base.Seconds()/float64(b.N), "bare-s")
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func bare(b *testing.B, c *clientv3.Client) time.Duration {
	start := time.Now()
	chunks, err := c.GetStream(b.Context(), layout.Prefix(), clientv3.WithRange(layout.End()))
	require.NoError(b, err)
	keys := 0
	for chunk := range chunks {
		require.NoError(b, chunk.Err())
		keys += len(chunk.Kvs)
	}
	require.Equal(b, benchKeys, keys)
	return time.Since(start)
}

func load(b *testing.B, c *clientv3.Client) {
	b.Helper()
	const writers, perTxn = 8, 20
	now := time.Now()
	locked := protocol.TimestampOf(now).String()
	alert := protocol.TimestampOf(now.Add(time.Hour)).String()
	auto := protocol.TimestampOf(now.Add(2 * time.Hour)).String()
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := w * perTxn; i < benchLocks; i += writers * perTxn {
				var puts []clientv3.Op
				for n := i; n < i+perTxn; n++ {
					name := fmt.Sprintf("batch/job-%010d", n)
					puts = append(puts,
						clientv3.OpPut(layout.Key(name, "alert_at"), alert),
						clientv3.OpPut(layout.Key(name, "auto_unlock_at"), auto),
						clientv3.OpPut(layout.Key(name, "hostname"), fmt.Sprintf("host-%d.example.org", n%20)),
						clientv3.OpPut(layout.Key(name, "locked_at"), locked),
						clientv3.OpPut(layout.Key(name, "uuid"), fmt.Sprintf("%08x-0000-4000-8000-0123456789ab", n)))
				}
				if _, err := c.Txn(b.Context()).Then(puts...).Commit(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	require.False(b, b.Failed())
}
