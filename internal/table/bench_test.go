package table

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/etcd-unlocker/unlocker/internal/lock"
)

const manyLocks = 200_000

// fill lists n locks with names of 20 bytes, five keys each, on a few hosts, of
// which the first are overdue.
func fill(c *core, n, overdue int) {
	c.begin(int64(n)+1, false)
	for i := range n {
		alert := time.Hour
		if i < overdue {
			alert = -time.Duration(i+1) * time.Second
		}
		rev := int64(i + 1)
		var b lock.Builder
		for f, v := range map[lock.Field]string{
			lock.FieldUUID:         fmt.Sprintf("%08x-0000-4000-8000-0123456789ab", i),
			lock.FieldHostname:     fmt.Sprintf("host-%d.example.org", i%20),
			lock.FieldLockedAt:     at(-time.Minute),
			lock.FieldAlertAt:      at(alert),
			lock.FieldAutoUnlockAt: at(2*time.Hour + time.Duration(i)*time.Millisecond),
		} {
			b.Add(lock.KV{Field: f, Value: []byte(v), Create: rev, Mod: rev})
		}
		c.list([]lock.Lock{b.Lock(fmt.Sprintf("batch/job-%010d", i))})
	}
	c.end()
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what unique's and pools' finalisation left
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func bytesPerLock(t require.TestingT) float64 {
	before := liveHeap()
	w := newWorld(t)
	fill(w.core, manyLocks, 0)
	after := liveHeap()
	require.Equal(t, manyLocks, w.counts[lock.Held])
	runtime.KeepAlive(w)
	return float64(after-before) / manyLocks
}

func TestMemoryPerLock(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(entry{}), uintptr(176), "the next size class is 192")
	require.LessOrEqual(t, bytesPerLock(t), 256.0)
}

func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(bytesPerLock(b), "B/lock")
	}
}

func BenchmarkStats(b *testing.B) {
	for _, overdue := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("overdue=%d", overdue), func(b *testing.B) {
			w := newWorld(b)
			fill(w.core, manyLocks, overdue)
			b.ReportAllocs()
			for b.Loop() {
				w.stats(500)
			}
		})
	}
}
