package app

import (
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcd-unlocker/unlocker/internal/config"
	"github.com/etcd-unlocker/unlocker/internal/etcdtest"
	"github.com/etcd-unlocker/unlocker/internal/localetcd"
	"github.com/etcd-unlocker/unlocker/internal/verdict"
)

// BenchmarkRecords removes 20,000 locks that are due at once, in turn without and with records, and compares the
// removals per second.
func BenchmarkRecords(b *testing.B) {
	const rounds, n = 3, 20_000
	for range b.N {
		var without, with, written float64
		for range rounds {
			rate, _ := removeRecorded(b, n, false)
			without += rate / rounds
			rate, took := removeRecorded(b, n, true)
			with, written = with+rate/rounds, written+took.Seconds()/rounds
		}
		b.ReportMetric(without, "without/s")
		b.ReportMetric(with, "with/s")
		b.ReportMetric(with/without, "with-x-without")
		b.ReportMetric(written, "until-written-s")
	}
}

// removeRecorded returns the removals per second, and how long after the last one all records were written.
func removeRecorded(b *testing.B, n int, recorded bool) (rate float64, took time.Duration) {
	b.Helper()
	e := etcdtest.Start(b, localetcd.Options{UnsafeNoFsync: true})
	c := config.Default()
	c.Etcd.Endpoints, c.Ops.Listen, c.Web.Listen = e.Endpoints(), "127.0.0.1:0", ""
	c.Reaper.Settle, c.Reaper.Storm.MinLocks, c.Election.Enabled = time.Second, 0, false
	a, err := New(c, slog.New(slog.NewJSONHandler(io.Discard, nil))) //nolint:sloglint // the lines are a part of the cost
	require.NoError(b, err)
	if !recorded {
		a.reaper.Records = nil
	}
	past := time.Now().Add(-time.Hour)
	for i := range n {
		e.Put(e.Lock(fmt.Sprintf("bench/%05d", i), past, past)...)
	}
	a.Start()
	defer func() { require.NoError(b, a.Stop(b.Context())) }()
	removed := func() int { return int(a.reaper.Stats().Removed[verdict.Expiry]) }
	await := func(condition func() bool) time.Time {
		for !condition() {
			time.Sleep(time.Millisecond) //nolint:forbidigo // it measures
		}
		return time.Now()
	}
	first := await(func() bool { return removed() > 0 })
	last := await(func() bool { return removed() == n })
	if !recorded {
		return float64(n) / last.Sub(first).Seconds(), 0
	}
	all := await(func() bool {
		resp, err := e.Client.Get(b.Context(), c.AuditKeys(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(b, err)
		return int(resp.Count)+int(a.reaper.Stats().RecordsDropped) == n
	})
	require.Zero(b, a.reaper.Stats().RecordsDropped)
	return float64(n) / last.Sub(first).Seconds(), all.Sub(last)
}
