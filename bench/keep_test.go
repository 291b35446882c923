package bench

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/mutex"
)

// BenchmarkKeep keeps 10,000 locks alive in this process, with the default patience, first
// without and then with the daemon beside etcd. All three are processes of their own. Then it
// renews as clients do that have a lock each: one transaction for each renewal. Last, single
// locks become due meanwhile.
//
//	go test -run '^$' -bench Keep -benchtime 1x ./bench
func BenchmarkKeep(b *testing.B) {
	const (
		locks = 10_000
		// cycle is a third of the default patience: each lock is renewed once.
		cycle = 40 * time.Second
	)
	binary := buildDaemon(b)
	names := make([]string, locks)
	for i := range names {
		names[i] = name(i)
	}
	for range b.N {
		etcd := startEtcd(b)
		c, err := mutex.New(etcd.etcd(), mutex.KeepAlive(time.Hour))
		require.NoError(b, err)
		kept, held, err := c.TryLockAll(b.Context(), names)
		require.NoError(b, err)
		require.Empty(b, held)
		alone := etcd.during(cycle, os.Getpid())
		b.ReportMetric(alone.txns, "txns/s")
		b.ReportMetric(100*alone.process, "client-cpu%")
		b.ReportMetric(100*alone.etcd, "etcd-alone-cpu%")
		d, _ := launch(b, binary, etcd.addr)
		require.Eventually(b, func() bool { return d.metric("unlocker_locks") == locks }, time.Minute, 100*time.Millisecond)
		renewed := d.metric("unlocker_lock_renewals_total")
		beside := etcd.during(2*cycle, d.pid)
		b.ReportMetric((d.metric("unlocker_lock_renewals_total")-renewed)/(2*cycle).Seconds(), "renewals/s")
		b.ReportMetric(100*beside.process, "daemon-cpu%")
		b.ReportMetric(100*beside.etcd, "etcd-beside-cpu%")
		b.ReportMetric(100*beside.process/beside.etcd, "daemon-%-of-etcd")
		require.NoError(b, c.UnlockAll(b.Context(), kept...))

		client := etcd.etcd()
		future := time.Now().Add(time.Hour)
		putLocks(etcdtest.On(b, client), locks, future, future)
		stop := renew(b, client, locks)
		single := etcd.during(cycle, d.pid)
		d.awaitNoHold()
		var late []time.Duration
		for i := range 100 {
			late = append(late, dueDelete(b, client, name(locks+i), time.Now().Add(idleTime)))
		}
		stop()
		b.ReportMetric(float64(quantile(late, .5).Microseconds())/1000, "due-to-gone-ms")
		b.ReportMetric(float64(quantile(late, .99).Microseconds())/1000, "due-to-gone-p99-ms")
		b.ReportMetric(single.txns, "single-txns/s")
		b.ReportMetric(100*single.process, "single-daemon-cpu%")
		b.ReportMetric(100*single.etcd, "single-etcd-cpu%")
		b.ReportMetric(100*single.process/single.etcd, "single-daemon-%-of-etcd")
		b.ReportMetric(0, "ns/op")
	}
}

// usage is what a server and another process did per second: transactions, and seconds of
// CPU time.
type usage struct {
	txns, etcd, process float64
}

// during measures for a time.
func (s server) during(d time.Duration, pid int) usage {
	read := func() usage {
		return usage{s.etcdTxns(), cpuTime(s.b, s.pid).Seconds(), cpuTime(s.b, pid).Seconds()}
	}
	before, start := read(), time.Now()
	<-time.After(d)
	after, seconds := read(), time.Since(start).Seconds()
	return usage{(after.txns - before.txns) / seconds, (after.etcd - before.etcd) / seconds, (after.process - before.process) / seconds}
}
