package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// BenchmarkCatchUp watches from 20,000 revisions ago, each of the three keys of a renewal, as a watch
// does that has fallen behind: all of them are below its prefix, and etcd is idle or written
// meanwhile, or one of ten is. The first result is how many of its own revisions etcd hands it in a
// second.
//
//	go test -run '^$' -bench CatchUp -benchtime 1x ./bench
func BenchmarkCatchUp(b *testing.B) {
	const revisions = 20_000
	for _, c := range []struct {
		name           string
		every, writers int
	}{{"all", 1, 0}, {"all-while-written", 1, 16}, {"one-of-ten", 10, 0}} {
		b.Run(c.name, func(b *testing.B) {
			client := startEtcd(b).etcd()
			var written atomic.Int64
			// write writes until there are n revisions or ctx ends.
			write := func(ctx context.Context, writers int, n int64) {
				var g errgroup.Group
				for range writers {
					g.Go(func() error {
						for i := written.Add(1); i <= n && ctx.Err() == nil; i = written.Add(1) {
							lock := "/others/" + name(int(i))
							if i%int64(c.every) == 0 {
								lock = prefix + name(int(i))
							}
							var puts []clientv3.Op
							for _, field := range []string{"alert_at", "alive_at", "auto_unlock_at"} {
								puts = append(puts, clientv3.OpPut(lock+"/"+field, "1700000000"))
							}
							if _, err := client.Txn(ctx).Then(puts...).Commit(); err != nil {
								return err
							}
						}
						return nil
					})
				}
				_ = g.Wait() // the watch misses what failed
			}
			first, err := client.Get(b.Context(), "first")
			require.NoError(b, err)
			write(b.Context(), 64, revisions)
			last, err := client.Get(b.Context(), "last")
			require.NoError(b, err)
			for range b.N {
				ctx, cancel := context.WithCancel(b.Context())
				var meanwhile errgroup.Group
				began, from := time.Now(), written.Load()
				meanwhile.Go(func() error { write(ctx, c.writers, 1<<62); return nil })
				for r := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision+1)) {
					require.NoError(b, r.Err())
					if r.Events[len(r.Events)-1].Kv.ModRevision > last.Header.Revision-int64(c.every) {
						break
					}
				}
				took := time.Since(began).Seconds()
				b.ReportMetric(revisions/float64(c.every)/took, "handed/s")
				b.ReportMetric(float64(written.Load()-from)/took, "written/s")
				cancel()
				require.NoError(b, meanwhile.Wait())
			}
		})
	}
}
